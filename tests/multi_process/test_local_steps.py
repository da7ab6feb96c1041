"""sync=local:H and sync=diloco:H: known answers, resumed trainings bit by bit, other layouts' checkpoints, Ctrl-C, what is refused."""
import json
import signal

from support import TINY, Folder, check, exported, finish, largest_difference, main, run, run_ok, start, steps_in, tensors, wait_for
from verify_matrix import MODELS

PLAIN = [*TINY[:-4], "--threads", 1]  # Without its rate and optimizer.
QUIET = ["--quiet", "--json"]
CNN = [*MODELS["cnn"], "--optimizer", "sgd", "--lr", "0.05", "--steps", 2]


def verdicts(arguments):
    return [line for line in run_ok(["verify", *CNN, *arguments, "--json"]) if line["event"] == "verify"]


def state(run_folder, step):
    """All tensors of a checkpoint, the optimizers' state among them."""
    found = {}
    for file in sorted((run_folder / "checkpoints" / f"step-{step:09d}").glob("*.safetensors")):
        for name, tensor in tensors(file).items():
            found[file.name, name] = tensor
    return found


def test_an_average_after_each_step_is_the_same_training():
    layouts = ["dp=2,sync=local:1", "dp=3,sync=local:1", "dp=2,pp=2,microbatches=2,sync=local:1", "dp=2,tp=2,sync=local:1", "pp=2,sync=local:2"]
    lines = verdicts(["--layouts", ";".join(layouts)]) + verdicts(["--layout", "dp=2,sync=local:1", "--shares", "3:1", "--accumulate", 2])
    lines += verdicts(["--layout", "dp=2,sync=diloco:1", "--outer-lr", 1, "--outer-momentum", 0])
    check(len(lines) == len(layouts) + 2, lines)
    for line in lines:
        check(line["verdict"] == "same" and line["repeats_bitwise"], line)


def test_faults_in_it_are_found():
    lines = run_ok(["verify", *CNN, "--layout", "dp=2,sync=local:1", "--faults", "gradient-scaled,bucket-not-exchanged,share-dropped,learning-rate", "--json"])
    outcomes = {line["fault"]: line["outcome"] for line in lines if line["event"] == "fault"}
    check(len(outcomes) == 4 and set(outcomes.values()) == {"found"}, outcomes)


def test_one_worker_is_one_process():
    with Folder() as folder:
        for name, layout in (("plain", "single"), ("local", "sync=local:4")):
            run_ok(["train", *PLAIN, "--optimizer", "adam", "--steps", 12, "--eval-every", 4, *QUIET, "--layout", layout, "--run", folder / name])
        check(state(folder / "plain", 12) == state(folder / "local", 12), "sync=local:4 with one worker is not what one process trains")


def test_a_resumed_training_is_the_same():
    for layout, more in (("dp=2,sync=diloco:4,compress=int8", ["--optimizer", "adam", "--lr", 0.01]),
                         ("dp=2,pp=2,microbatches=2,sync=local:4", ["--optimizer", "momentum", "--clip-norm", 0.5]),
                         ("dp=2,tp=2,sync=diloco:2", ["--optimizer", "momentum"]),
                         ("dp=2,sync=diloco:8:3,compress=fp16", ["--optimizer", "momentum"]),
                         ("dp=3,sync=local:4,shares=3:1:2", ["--optimizer", "momentum", "--precision", "bf16", "--accumulate", 2])):
        with Folder() as folder:
            common = ["train", *PLAIN, *more, *QUIET, "--layout", layout]
            run_ok([*common, "--steps", 16, "--eval-every", 8, "--run", folder / "straight"])
            run_ok([*common, "--steps", 8, "--eval-every", 8, "--run", folder / "parts"])
            run_ok(["train", "--run", folder / "parts", "--resume", "--steps", 16])
            straight, parts = state(folder / "straight", 16), state(folder / "parts", 16)
            check(any("worker-1/optimizer/" in name for _, name in straight), f"{layout}: {list(straight)}")
            check(any("worker-1/weights/" in name for _, name in straight) == (":8:3" in layout), f"{layout}: {list(straight)}")
            check(any("outer/optimizer/" in name for _, name in straight) == ("diloco" in layout), f"{layout}: {list(straight)}")
            check(straight == parts, f"{layout}: {[key for key in straight if straight[key] != parts.get(key)]}")
            # Workers have momenta of their own, and one set of weights.
            momenta = {tensor[2] for (_, name), tensor in straight.items() if name.endswith("/optimizer/hidden1.weight/momentum") and "worker" in name}
            check("adam" in more or not momenta or len(momenta) > 1, f"{layout}: all workers have the same momentum")


def test_fragments_do_not_change_with_what_looks_at_them():
    """What is evaluated and saved is what was exchanged last, so how often that is done changes nothing; one fragment is none."""
    with Folder() as folder:
        found = {}
        for name, layout, more in (("often", "dp=2,sync=local:4:4", ["--eval-every", 4, "--checkpoint-every", 4]), ("once", "dp=2,sync=local:4:4", ["--eval-every", 16]),
                                   ("one", "dp=2,sync=local:4:1", ["--eval-every", 16]), ("none", "dp=2,sync=local:4", ["--eval-every", 16])):
            lines = run_ok(["train", *PLAIN, "--optimizer", "momentum", "--steps", 16, *QUIET, "--layout", layout, *more, "--run", folder / name])
            found[name] = (state(folder / name, 16), [line["val_loss"] for line in lines if line["event"] == "eval"][-1], [line["loss"] for line in lines if line["event"] == "step"])
        check(found["often"] == found["once"], "an evaluation or a checkpoint changed the training")
        check(found["one"] == found["none"], "local:4:1 is not local:4")
        check(found["once"][2] != found["none"][2], "fragments make no difference")
        own = [tensor for (_, name), tensor in found["once"][0].items() if name.endswith("/weights/hidden1.weight")]
        whole = next(tensor for (_, name), tensor in found["once"][0].items() if name == "model/hidden1.weight")
        check(len(own) == 2 and own[0] != own[1] and whole not in own, "workers have weights of their own at the end of a round")
        check(exported(folder / "once", folder)["hidden1.weight"][2] == whole[2], "what is exported is what was evaluated")


def test_checkpoints_go_to_and_from_other_layouts():
    with Folder() as folder:
        common = ["train", *PLAIN, "--optimizer", "adam", "--lr", 0.01, *QUIET]
        run_ok([*common, "--steps", 8, "--layout", "dp=2,sync=diloco:4", "--run", folder / "run"])
        means = "had each an optimizer's state of its own"
        for steps, layout, says in ((12, "dp=3,sync=local:2", True), (13, "single", True), (14, "dp=2", False), (16, "dp=2,sync=diloco:2", False), (18, "dp=2,sync=local:2", False),
                                    (19, "dp=2,zero=2", True), (24, "dp=3,sync=local:4:2", False), (28, "dp=2,sync=diloco:4:4", True), (32, "single", True)):
            code, out, err = run(["train", "--run", folder / "run", "--resume", "--layout", layout, "--steps", steps])
            check(code == 0, f"{layout}: {code} {err}")
            check((means in err) == says, f"{layout}: {err}")
            lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
            check(lines[-1]["event"] == "done" and lines[-1]["step"] == steps, f"{layout}: {lines[-1]}")
            # It went on, and did not start again.
            losses = [line["loss"] for line in lines if line["event"] == "step"]
            check(losses[-1] < 0.8 * losses[0], f"{layout}: {losses}")


def test_lines_of_metrics_stand_for_the_steps_since_the_exchange():
    with Folder() as folder:
        lines = run_ok(["train", *PLAIN, "--optimizer", "sgd", "--epochs", 1, *QUIET, "--layout", "dp=2,sync=local:4", "--run", folder / "run"])
        steps = [line for line in lines if line["event"] == "step"]
        check([line["step"] for line in steps] == list(range(4, lines[0]["steps"] + 1, 4)) and lines[0]["steps"] % 4 == 0, steps)
        check(all(line["step"] % 4 == 0 for line in lines if line["event"] in ("eval", "checkpoint")), lines)
        ranks = next(json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines() if '"event":"ranks"' in line)["ranks"]
        check(sum(rank["samples"] for rank in ranks) >= lines[0]["train_samples"], ranks)
        # The mean over the samples of all workers: with weights that do not move, the loss of one process.
        still = ["train", *PLAIN, "--optimizer", "sgd", "--lr", 0, "--steps", 4, *QUIET]
        one = [line["loss"] for line in run_ok([*still, "--layout", "single", "--run", folder / "one"]) if line["event"] == "step"]
        for layout in ("dp=3,sync=local:4,shares=5:2:1", "dp=2,pp=2,microbatches=2,sync=local:4", "dp=2,tp=2,sync=diloco:2"):
            many = [line for line in run_ok([*still, "--layout", layout, "--run", folder / layout]) if line["event"] == "step"]
            mean = sum(one[-4 // len(many):]) / (4 // len(many))
            check(abs(many[-1]["loss"] - mean) < 1e-5, f"{layout}: {many}, one process {one}")


def test_interrupted_at_an_exchange():
    with Folder() as folder:
        process = start(["train", *PLAIN, "--optimizer", "momentum", "--steps", 800000, "--eval-every", 800000, "--layout", "dp=2,sync=diloco:8", "--inject", "slow:1:3", "--run", folder / "run"])
        wait_for(lambda: steps_in(folder / "run") >= 16, "two exchanges")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        check(code == 130 and last["event"] == "interrupted" and last["step"] % 8 == 0, f"{code} {last} {err}")
        run_ok(["train", "--run", folder / "run", "--resume", "--steps", last["step"] + 8, "--eval-every", 8])


def test_a_lost_or_diverged_worker_ends_the_training():
    with Folder() as folder:
        code, _, err = run(["train", *PLAIN, "--optimizer", "sgd", "--steps", 40, "--layout", "dp=2,sync=local:8", "--inject", "kill:1:13", "--run", folder / "killed"])
        check(code == 4 and "rank 1" in err, f"{code} {err}")
        code, _, err = run(["train", *PLAIN, "--optimizer", "sgd", "--lr", 1e6, "--steps", 16, "--layout", "dp=2,sync=local:4", "--run", folder / "far"])
        check(code == 1 and "the mean loss since the last exchange is not finite" in err, f"{code} {err}")


def test_a_layout_file():
    with Folder() as folder:
        (folder / "local.json").write_text('{"dp": 2, "sync": "local:4"}')
        for name, layout in (("file", folder / "local.json"), ("text", "dp=2,sync=local:4")):
            run_ok(["train", *PLAIN, "--optimizer", "sgd", "--steps", 8, *QUIET, "--layout", layout, "--run", folder / name])
        check(largest_difference(exported(folder / "file", folder), exported(folder / "text", folder)) == 0, "a file trains otherwise than its text")


def test_what_does_not_go_together_is_refused():
    local = ["--workers", 2, "--layout", "dp=2,sync=local:4"]
    for arguments, sentence in (([*local, "--steps", 10], "--steps 10 with --layout sync=local:4: workers have the same weights after every 4 steps alone; use 8 or 12"),
                                ([*local, "--eval-every", 2], "use 4"), ([*local, "--checkpoint-every", 6], "use 4 or 8"), ([*local, "--log-every", 3], "use 4"),
                                ([*local, "--weights", "private"], "with sync=local:4 each rank has its own already"), ([*local, "--bucket-bytes", 100], "with sync=local:4 no gradients are exchanged"),
                                ([*local, "--outer-lr", 0.5], "it acts with sync=diloco:H, and sync is local:4"), (["--outer-momentum", 0.5], "it acts with sync=diloco:H"),
                                (["--layout", "dp=2,zero=1,sync=local:4"], "zero=0"), (["--layout", "dp=2,sync=diloco:4,compress=topk:0.1"], "compress=fp16, bf16 or int8"),
                                ([*local, "--shares", "auto"], "give numbers"), ([*local, "--precision", "fp16"], "--precision bf16"), ([*local, "--sync-batch-norm"], "norm=ghost"),
                                ([*local, "--noise-scale", 2], "sync=step"), (["--layout", "dp=2,sync=local:0"], "H and Q from 1"), (["--layout", "dp=2,sync=local:2:3"], "use 2 or fewer"), (["--layout", "dp=2,pp=2,sync=local:4:2"], "use dp alone"),
                                (["--layout", "dp=2,tp=2,sync=diloco:4:2"], "use dp alone"), (["--layout", "dp=2,sync=queue,zero=1"], "sync=queue with zero=1")):
        code, _, err = run(["train", *PLAIN, *arguments])
        check(code == 2 and sentence in err and len(err.splitlines()) == 1, f"{arguments}: {code} {err}")
    for arguments, sentence in ((["--layout", "dp=2,sync=local:2"], "another training by design"), (["--layout", "dp=2,sync=diloco:2:2", "--outer-lr", 1, "--outer-momentum", 0], "another training by design"), (["--layout", "dp=2,sync=diloco:1"], "--outer-lr 1"),
                                (["--layout", "dp=2,sync=local:1", "--optimizer", "adam"], "--optimizer sgd"), (["--layout", "dp=2,sync=local:1", "--clip-norm", 1], "leave --clip-norm out")):
        code, _, err = run(["verify", *CNN, *arguments])
        check(code == 2 and sentence in err, f"{arguments}: {code} {err}")


if __name__ == "__main__":
    main(globals())

"""sync=local:H and diloco:H with a quorum, real workers and virtual ones: known answers, who is late or lost, the same bits where nobody is, resumed runs, what is refused."""
import json
import os
import re
import shutil
import signal

from support import TINY as TINY_MODEL, Folder, check, checkpoint_of, children, exported, finish, largest_difference, main, run, run_ok, start, steps_in, tensors, wait_for

TINY = [*TINY_MODEL, "--threads", 1]


def record(run_folder, event):
    found = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event][-1]


def train(folder, name, *options):
    code, _, err = run(["train", *TINY, "--quiet", "--run", folder / name, *options])
    check(code == 0, f"{name}: {code} {err}")
    return exported(folder / name, folder)


def samples_of(run_folder, steps):
    num_samples = record(run_folder, "start")["train_samples"]
    of_epoch = -(-num_samples // 32)
    return steps // of_epoch * num_samples + steps % of_epoch * 32


def test_a_quorum_of_all_is_local_steps():
    """With nobody late the server does what ranks do together, in the same order."""
    with Folder() as folder:
        for sync, workers, bound, more in (("local:4", 3, 1e-5, ["--optimizer", "adamw", "--clip-norm", 0.5]), ("diloco:8", 2, 1e-6, ["--outer-lr", 0.5])):
            common = ["--steps", 32, "--eval-every", 16, "--schedule-lr", "cosine", *more]
            found = {}
            for name, how in (("ranks", ["--workers", workers, "--layout", f"sync={sync}"]), ("served", ["--workers", workers, "--layout", f"sync={sync}:quorum={workers}"]),
                              ("again", ["--workers", workers, "--layout", f"sync={sync}:quorum={workers}:grace=5"]),
                              ("clock", ["--virtual", f"workers={workers},compute=0.01,slow=1:3", "--layout", f"sync={sync}:quorum={workers}"])):
                found[name] = train(folder, f"{name}-{sync[:5]}", *common, *how)
            check(found["served"] == found["again"], f"{sync}: other bits the second time")
            check(found["served"] == found["clock"], f"{sync}: other bits under the virtual clock")
            difference = largest_difference(found["ranks"], found["served"])  # Of shares that are no power of two: rounding.
            check(difference < bound, f"sync={sync}: a quorum of all differs from ranks by {difference}")
            account = record(folder / f"served-{sync[:5]}", "async")
            check(account["staleness_tail"] == 0 and account["lost"] == 0 and account["samples"] == samples_of(folder / f"served-{sync[:5]}", 32), f"{account}")
            for name in ("served", "clock"):  # An exchange is of several steps, each with a line and its part of the seconds.
                lines = [json.loads(line) for line in (folder / f"{name}-{sync[:5]}" / "metrics.jsonl").read_text().splitlines()]
                steps = [line for line in lines if line["event"] == "step"]
                check(len(steps) == 32 and sum(line["step_seconds"] for line in steps) <= record(folder / f"{name}-{sync[:5]}", "done")["seconds"], f"{name}: steps take longer than the run: {steps}")
            losses = [[line["loss"] for line in map(json.loads, (folder / f"{name}-{sync[:5]}" / "metrics.jsonl").read_text().splitlines()) if line["event"] == "step" and line["step"] % int(sync[-1]) == 0]
                      for name in ("ranks", "served")]
            check(max(abs(a - b) for a, b in zip(*losses)) < 1e-5, f"{losses}")


def test_one_worker_is_one_process():
    with Folder() as folder:
        common = ["--steps", 20, "--optimizer", "adamw", "--clip-norm", 0.5, "--eval-every", 10]
        plain = train(folder, "plain", *common)
        difference = largest_difference(plain, train(folder, "served", *common, "--layout", "sync=local:4:quorum=1"))
        check(difference < 1e-6, f"{difference}")  # a + (w - a) rounds.


def test_who_is_late_is_not_waited_for():
    with Folder() as folder:
        train(folder, "late", "--steps", 64, "--workers", 3, "--layout", "sync=diloco:4:quorum=2", "--outer-momentum", 0.5, "--inject", "slow:0:8,slow:1:8,slow:2:60")
        account = record(folder / "late", "async")
        pushes = [worker["pushes"] for worker in account["workers"]]
        check(account["samples"] == samples_of(folder / "late", 64) and pushes[2] < min(pushes[:2]), f"{account}")
        check(account["pushes_of_staleness"][0] > 0 and account["staleness_tail"] > 0, f"nobody was late: {account}")
        # Within a long grace time it is waited for.
        train(folder, "grace", "--steps", 32, "--workers", 3, "--layout", "sync=diloco:4:quorum=2:grace=30", "--inject", "slow:0:2,slow:1:2,slow:2:8")
        account = record(folder / "grace", "async")
        check([worker["pushes"] for worker in account["workers"]] == [8, 8, 8] and account["staleness_tail"] == 0, f"{account}")


def test_a_lost_worker_ends_nothing():
    with Folder() as folder:
        code, _, err = run(["train", *TINY, "--quiet", "--run", folder / "k", "--steps", 48, "--workers", 3, "--layout", "sync=diloco:4:quorum=3", "--inject", "kill:2:3"])
        check(code == 0 and "worker 2 is lost after 3 pushes" in err and "its work item goes to another" in err, f"{code} {err}")
        account = record(folder / "k", "async")
        check(account["samples"] == samples_of(folder / "k", 48) and account["workers"][2]["pushes"] == 3 and account["deaths"] == 1, f"{account}")
        # On with all, with fewer, as ranks that exchange together, and as plain data parallelism.
        resume = ["train", "--run", folder / "k", "--resume", "--quiet"]
        for options, steps in ((["--inject", "slow:1:1.5"], 64), (["--workers", 2, "--layout", "sync=diloco:4:quorum=2:grace=0.1"], 80), (["--workers", 2, "--layout", "sync=diloco:4"], 96), (["--workers", 2, "--layout", "dp"], 100)):
            losses = record(folder / "k", "step")["loss"]
            code, _, err = run([*resume, "--steps", steps, *options])
            check(code == 0 and steps_in(folder / "k") == steps, f"{options}: {code} {err}")
            check(record(folder / "k", "step")["loss"] < losses + 0.3, f"{options}: it did not go on from there")


def test_killed_and_stopped_at_any_moment():
    with Folder() as folder:
        process = start(["train", *TINY, "--quiet", "--run", folder / "r", "--workers", 3, "--layout", "sync=local:4:quorum=2:grace=0.05", "--steps", 200, "--inject", "slow:0:20,slow:1:20,slow:2:20"])
        ranks = wait_for(lambda: len(children(process.pid)) == 3 and sorted(children(process.pid)), "three ranks")
        wait_for(lambda: steps_in(folder / "r") > 8, "some exchanges")
        os.kill(ranks[1], signal.SIGKILL)
        wait_for(lambda: steps_in(folder / "r") > 60, "exchanges without it")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130 and "worker 1 is lost" in err, f"{code} {err}")
        run_ok(["train", "--run", folder / "r", "--resume", "--quiet", "--inject", "slow:1:1.5", "--steps", 200])
        check(record(folder / "r", "async")["samples"] == samples_of(folder / "r", 200), "each sample counts once")


def test_virtual_quorums_are_repeatable_and_go_on_bit_by_bit():
    rough = "workers=7,speed=lognormal:0.5,link=2ms:20Mbit,mtbf=1,restart=0.2,compute=0.01,pauses=0.3:0.1,slow=2:4"
    options = ["--steps", 60, "--checkpoint-every", 9, "--eval-every", 20, "--keep-checkpoints", 2, "--optimizer", "adam", "--layout", "sync=diloco:3:quorum=4:grace=0.02", "--virtual", rough]
    with Folder() as folder:
        train(folder, "whole", *options)
        process = start(["train", *TINY, "--quiet", "--run", folder / "killed", *options])
        wait_for(lambda: any(path.name[5:].isdigit() for path in (folder / "killed/checkpoints").glob("step-*")) or process.poll() is not None, "a checkpoint")
        os.killpg(process.pid, signal.SIGKILL)
        finish(process)
        check(steps_in(folder / "killed") < 60, "the kill came too late to show anything")
        run_ok(["train", folder / "killed/config.toml", "--resume", "--quiet"])
        found = [tensors(checkpoint_of(folder / name) / "rank-00000.safetensors") for name in ("whole", "killed")]
        check({name: tensor for name, tensor in found[0].items() if name != "async/state"} == {name: tensor for name, tensor in found[1].items() if name != "async/state"}, "other tensors after a resume")
        accounts = [record(folder / name, "async") for name in ("whole", "killed")]
        check(accounts[0] == accounts[1], f"other accounts\n{accounts}")
        account = accounts[0]
        check(account["samples"] == samples_of(folder / "whole", 60) and account["deaths"] > 0 and account["lost"] > 0 and account["staleness_tail"] > 0, f"{account}")
        sums = [sum(worker[f"{what}_seconds"] for what in ("computing", "waiting", "moving")) for worker in train_without_deaths(folder)["workers"]]
        check(max(sums) - min(sums) < 1e-6, f"each worker computes, waits or moves all the time: {sums}")


def train_without_deaths(folder):
    train(folder, "alive", "--steps", 24, "--layout", "sync=local:4:quorum=2", "--virtual", "workers=3,compute=0.01,slow=2:3,link=1ms:100Mbit")
    return record(folder / "alive", "async")


def test_verify_and_what_is_refused():
    verify = ["verify", "--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=512", "--global-batch", 32, "--steps", 2, "--optimizer", "sgd"]
    for layout, more in (("dp=3,sync=local:1:quorum=3", []), ("dp=2,sync=diloco:1:quorum=2", ["--outer-lr", 1, "--outer-momentum", 0])):
        line = [line for line in run_ok([*verify, "--layout", layout, *more, "--json"]) if line["event"] == "verify"][-1]
        check(line["verdict"] == "same", line)
    for options, words in ((["--layout", "dp=3,sync=local:1:quorum=2"], "another training by design"), (["--layout", "dp=2,sync=local:4:quorum=2"], "another training by design"),
                           (["--layout", "dp=2,sync=diloco:1:quorum=2"], "quorum=N of N workers"), (["--layout", "dp=2,sync=local:1:quorum=2", "--optimizer", "adam"], "keeps a state in each worker"), (["--layout", "dp=2,sync=local:1:quorum=2", "--clip-norm", 1], "clips its own gradient")):
        code, _, err = run([*verify, *options])
        check(code == 2 and words in err.splitlines()[-1], f"{options}: {code} {err}")
    quorum = ["--workers", 2, "--layout", "sync=diloco:4:quorum=2"]
    for options, words in ((["--workers", 2, "--layout", "sync=local:4:quorum=3"], "a quorum of 3 with 2 workers never comes; use quorum=2 or less"),
                           (["--layout", "sync=local:4:quorum=2", "--virtual", "workers=1,compute=1"], "never comes"),
                           ([*quorum, "--steps", 10], "use 8 or 12"), (["--workers", 2, "--layout", "sync=local:4:2:quorum=2"], "exchanged whole"), (["--workers", 2, "--layout", "sync=local:4:grace=2"], "is none of"),
                           (["--workers", 4, "--layout", "pp=2,sync=local:4:quorum=2"], "each of their workers has a whole model"), (["--workers", 2, "--layout", "zero=1,sync=local:4:quorum=2"], "use dp alone"),
                           ([*quorum, "--shares", "3:1"], "leave it out"), ([*quorum, "--accumulate", 2], "--accumulate 2 with sync=diloco:4:quorum=2"), ([*quorum, "--precision", "fp16"], "--precision fp16"),
                           ([*quorum, "--sync-batch-norm"], "--sync-batch-norm"), ([*quorum, "--noise-scale", 2], "--noise-scale"), ([*quorum, "--remedy", "rate:0.5"], "it acts with sync=async"),
                           (["--workers", 2, "--layout", "sync=local:4:quorum=2", "--outer-lr", 0.5], "it acts with sync=diloco:H"), ([*quorum, "--weights", "private"], "each rank has its own already")):
        code, _, err = run(["train", *TINY, *([] if "--steps" in options else ["--steps", 8]), *options])
        check(code == 2 and words in err and len(err.splitlines()) == 1, f"{options}: {code} {err}")


if __name__ == "__main__":
    main(globals())

"""sync=async, stale:K and queue with real workers: known answers, each sample once, workers that are killed, stopped and come back, the server's end, launchers, what is refused."""
import json
import os
import re
import signal
import socket
import subprocess
import time

from support import COHORT, Folder, TINY as TINY_MODEL, check, children, exported, finish, largest_difference, main, mpi_launchers, run, run_ok, start, steps_in, wait_for

TINY = [*TINY_MODEL, "--threads", 1]
SGD = ["--optimizer", "sgd"]  # The last counts.
SLOW = "slow:0:{0},slow:1:{0},slow:2:{0}"  # Workers that have time to be killed.


def record(run_folder, event):
    found = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event][-1]


def train(folder, name, *options):
    _, text = said(["train", *TINY, "--quiet", "--run", folder / name, *options])
    return exported(folder / name, folder), text


def said(arguments, expected=0):
    """Exit code and stderr."""
    code, _, err = run(arguments)
    check(expected is None or code == expected, f"{arguments}: exit code {code}\n{err}")
    return code, err


def samples_of(run_folder, steps):
    """That so many steps have: the last of an epoch is smaller."""
    num_samples = record(run_folder, "start")["train_samples"]
    of_epoch = -(-num_samples // 32)
    return steps // of_epoch * num_samples + steps % of_epoch * 32


def begin(folder, name, *options):
    process = start(["train", *TINY, "--quiet", "--run", folder / name, "--workers", 3, "--layout", "sync=async", *options])
    return process


def ranks_of(process):
    return wait_for(lambda: len(children(process.pid)) == 3 and sorted(children(process.pid)), "three ranks")


def test_one_worker_is_a_training_of_one_process_bit_by_bit():
    with Folder() as folder:
        for optimizer, sync in (("momentum", "async"), ("adamw", "stale:0"), ("momentum", "queue"), ("adamw", "queue:newest")):
            common = ["--steps", 20, "--optimizer", optimizer, "--clip-norm", 0.5, "--schedule-lr", "cosine", "--warmup-steps", 5, "--eval-every", 9]
            names = f"plain-{optimizer}-{sync.replace(':', '-')}", f"served-{optimizer}-{sync.replace(':', '-')}"
            plain, _ = train(folder, names[0], *common)
            served, _ = train(folder, names[1], *common, "--layout", f"sync={sync}")
            check(served == plain, f"{sync} of one worker is not the training of one process")
            evaluations = [[line for line in (folder / name / "metrics.jsonl").read_text().splitlines() if '"event":"eval"' in line] for name in names]
            check(evaluations[0] == evaluations[1] and len(evaluations[0]) == 3, f"other evaluations: {evaluations}")


def test_nobody_ahead_is_the_step_with_sgd_and_each_sample_counts_once():
    with Folder() as folder:
        step, _ = train(folder, "step", "--steps", 48, *SGD)
        for sync, bound in (("stale:0", 1e-5), ("stale:2", None), ("async", None), ("queue", None), ("queue:newest:replace", None)):
            name = sync.replace(":", "-")
            weights, text = train(folder, name, "--steps", 48, *SGD, "--workers", 3, "--layout", f"sync={sync}")
            difference = largest_difference(step, weights)
            check(bound is None or difference < bound, f"{sync} differs from step by {difference}")
            check(bound is not None or difference > 1e-4, f"{sync} is step: nobody was late?")
            account = record(folder / name, "async")
            check(account["samples"] == samples_of(folder / name, 48) == sum(worker["samples"] for worker in account["workers"]), f"{sync}: {account}")
            check(sync != "stale:0" or account["most_late_steps"] < 1, f"stale:0 was late: {account}")
            check(account["lost"] == account["deaths"] == 0 and "pushes" in text, f"{account}\n{text}")
            if sync == "stale:0":
                check(train(folder, "again", "--steps", 48, *SGD, "--workers", 3, "--layout", "sync=stale:0")[0] == weights, "stale:0 has other bits the second time")
            check("Workers that do not wait" in (folder / name / "report.html").read_text(), "the report says nothing of it")


def test_verify_knows_what_it_can_compare():
    verify = ["verify", "--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=512", "--global-batch", 32, "--steps", 2]
    run_ok([*verify, *SGD, "--layout", "dp=3,sync=stale:0"])
    for options, words in (
        ([*SGD, "--layout", "dp=2,sync=stale:1"], "another training by design"),
        (["--optimizer", "momentum", "--layout", "dp=2,sync=stale:0"], "--optimizer momentum"),
        ([*SGD, "--layout", "dp=2,sync=async,compress=int8"], "another training by design"),
        ([*SGD, "--layout", "dp=2,sync=stale:0", "--faults", "all"], "--faults"),
    ):
        _, err = said([*verify, *options], 2)
        check(words in err and err.count("\n") == 1, f"{options}: {err}")


def test_pushes_travel_compressed():
    """The bytes that came are those of the code; it learns as without; a worker that is killed takes its residual along, and a resumed run says where it begins."""
    with Folder() as folder:
        common = ["--steps", 96, "--workers", 3, "--eval-every", 96]
        whole, _ = train(folder, "none", *common, "--layout", "sync=async")
        plain, parameters = record(folder / "none", "async"), sum(len(raw) for _, _, raw in whole.values()) // 4
        for compress, sync, most in (("int8", "async", 0.3), ("fp16", "stale:1", 0.51), ("bf16", "async", 0.51)):
            train(folder, compress, *common, "--layout", f"sync={sync},compress={compress}")
            account = record(folder / compress, "async")
            check(account["compress"] == compress and account["bytes_to_workers"] == account["pushes"] * 4 * parameters == plain["bytes_to_workers"], f"{account}")
            check(0.25 * plain["bytes_to_server"] < account["bytes_to_server"] < most * plain["bytes_to_server"], f"{compress}: {account['bytes_to_server']} of {plain['bytes_to_server']}")
            losses = [record(folder / name, "eval")["val_loss"] for name in ("none", compress)]
            check(losses[1] < 1.3 * losses[0] + 0.05, f"{compress}: {losses}")
            check(f"pushes as {compress}" in (folder / compress / "report.html").read_text(), "the report does not say so")
        _, err = said(["train", *TINY, "--quiet", "--run", folder / "k", "--steps", 40, "--workers", 3, "--layout", "sync=async,compress=int8", "--remedy", "rate:0.5", "--inject", "kill:2:5,slow:0:3,slow:1:9"])
        account = record(folder / "k", "async")
        check(account["deaths"] == 1 and account["samples"] == samples_of(folder / "k", 40), f"{account}\n{err}")
        _, err = said(["train", "--run", folder / "k", "--resume", "--quiet", "--steps", 50, "--inject", "slow:1:2"])
        check("begin at zero again" in err and err.count("compress=int8") == 1, err)
        _, err = said(["train", "--run", folder / "k", "--resume", "--quiet", "--steps", 60, "--layout", "sync=async"])
        check("all workers begin anew" in err, err)


def test_a_killed_worker_is_named_and_the_training_goes_on():
    with Folder() as folder:
        _, err = said(["train", *TINY, "--quiet", "--run", folder / "k", "--steps", 40, "--workers", 3, "--layout", "sync=async", "--inject", "kill:2:5"])
        check(re.search(r"rank 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\); the training goes on", err), err)
        check("worker 2 is lost after 5 pushes" in err and "its work item goes to another" in err, err)
        account = record(folder / "k", "async")
        check(account["samples"] == samples_of(folder / "k", 40) and account["workers"][2]["pushes"] == 5 and account["lost"] == account["deaths"] == 1, f"{account}")
        # Goes on with all of them, with fewer, and as another kind of training.
        resume = ["train", "--run", folder / "k", "--resume", "--quiet"]
        said([*resume, "--steps", 60, "--inject", "slow:1:1.5"])
        account = record(folder / "k", "async")
        check(account["samples"] == samples_of(folder / "k", 60) and account["workers"][2]["pushes"] > 5, f"{account}")
        _, err = said([*resume, "--steps", 70, "--workers", 2])
        check("all workers begin anew" in err, err)
        said([*resume, "--steps", 80, "--workers", 2, "--layout", "dp"])
        check(steps_in(folder / "k") == 80, "it did not go on")


def test_a_stopped_worker_is_lost_and_comes_back():
    with Folder() as folder:
        process = begin(folder, "s", "--steps", 1000000, "--inject", SLOW.format(10), "--log-every", 1)
        ranks = ranks_of(process)
        wait_for(lambda: steps_in(folder / "s") > 20, "steps of all three")  # One that is stopped before it has come is not lost.
        os.kill(ranks[2], signal.SIGSTOP)
        lines = []
        while not any("worker 2 is lost" in line for line in lines):
            lines.append(process.stderr.readline())
            check(lines[-1] != "", f"it ended: {lines}")
        before = steps_in(folder / "s")
        wait_for(lambda: steps_in(folder / "s") > before + 2, "the others go on")
        os.kill(ranks[2], signal.SIGCONT)
        while not any("worker 2 is back" in line for line in lines):
            lines.append(process.stderr.readline())
            check(lines[-1] != "", f"it ended: {lines}")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130 and "go on with" in err, f"{code} {err}")
        step = steps_in(folder / "s")
        run_ok(["train", "--run", folder / "s", "--resume", "--steps", step + 5, "--quiet", "--inject", "slow:1:1.5"])


def test_a_worker_that_dies_before_it_comes_is_named_and_rank_0_may_be_stopped_alone():
    with Folder() as folder:
        process = begin(folder, "early", "--steps", 40)
        os.kill(ranks_of(process)[1], signal.SIGKILL)
        began = time.monotonic()
        code, _, err = finish(process)
        check(code == 0 and time.monotonic() - began < 9, f"{code} after {time.monotonic() - began} s: {err}")
        check("worker 1 never came" in err or "worker 1 is lost" in err, err)
        process = begin(folder, "term", "--steps", 1000000, "--inject", SLOW.format(6), "--log-every", 1)
        ranks = ranks_of(process)
        wait_for(lambda: steps_in(folder / "term") > 2, "steps")
        os.kill(ranks[0], signal.SIGTERM)
        code, _, err = finish(process)
        check(code == 130 and "go on with" in err, f"{code} {err}")


def test_the_end_of_the_server_ends_the_job_and_loses_no_checkpoint():
    with Folder() as folder:
        process = begin(folder, "d", "--steps", 1000000, "--inject", SLOW.format(6), "--checkpoint-every", 5, "--log-every", 1)
        ranks = ranks_of(process)
        wait_for(lambda: steps_in(folder / "d") > 12, "steps")
        os.kill(ranks[0], signal.SIGKILL)
        killed = time.monotonic()
        code, _, err = finish(process)
        check(code == 4 and re.search(r"rank 0 \(pid \d+\) was killed by signal 9 \(SIGKILL\) after step \d\d", err), f"{code} {err}")
        check(time.monotonic() - killed < 20, "it took long")
        run_ok(["checkpoint", "verify", folder / "d"])
        run_ok(["train", "--run", folder / "d", "--resume", "--steps", steps_in(folder / "d") + 10, "--quiet", "--inject", "slow:1:1.5"])


def test_a_loss_that_is_not_finite_ends_it_with_one_line():
    with Folder() as folder:
        _, err = said(["train", *TINY, "--quiet", "--run", folder / "n", "--steps", 200, "--lr", 1e6, "--workers", 2, "--layout", "sync=async"], 1)
        check("is not finite" in err and "--lr" in err, err)


def test_other_launchers():
    with Folder() as folder:
        for launcher in mpi_launchers():
            name = launcher.split(".")[1]
            result = subprocess.run([launcher, "-n", "3", COHORT, "train", *map(str, TINY), "--quiet", "--run", str(folder / name), "--steps", "20", "--layout", "sync=async"], capture_output=True, text=True, timeout=120)
            check(result.returncode == 0 and record(folder / name, "async")["samples"] == samples_of(folder / name, 20), f"{launcher}: {result.stderr}")
            check(len([worker for worker in record(folder / name, "async")["workers"]]) == 3, f"{launcher}: not three workers")


def test_a_rank_with_other_options_is_turned_away():
    with Folder() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank, rate in ((0, "0.05"), (1, "0.06")):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(start(["train", *TINY, "--quiet", "--run", folder / "o", "--steps", 40, "--layout", "sync=async", "--inject", "slow:0:20", "--lr", rate], env=environment))
        codes = [finish(process) for process in processes]
        check(codes[0][0] == 0, f"{codes}")
        check(codes[1][0] == 4 and "another configuration" in codes[1][2] + codes[0][2], f"{codes}")


def test_what_cannot_be_is_refused_with_one_line():
    for options, words in (
        (["--layout", "sync=queue:merge", "--workers", 2], "queue:newest"),
        (["--layout", "dp=2,zero=1,sync=async", "--workers", 2], "zero=1"),
        (["--layout", "pp=2,sync=async", "--workers", 2], "pp"),
        (["--layout", "sync=async,compress=topk:0.1", "--workers", 2], "compress=fp16, bf16 or int8"),
        (["--layout", "sync=stale:0,compress=fp16", "--workers", 2], "use sync=step with compress"),
        (["--layout", "sync=queue,compress=int8", "--workers", 2], "use sync=async"),
        (["--layout", "sync=async,compress=int8"], "with dp=2 or more"),
        (["--layout", "sync=async:servers=2", "--workers", 2], "is none of"),
        (["--layout", "sync=stale:2:overlap", "--workers", 2], "is none of"),
        (["--layout", "sync=hogwild", "--workers", 2, *SGD], "is none of"),
        (["--layout", "sync=async", "--workers", 2, "--shares", "2:1"], "--shares"),
        (["--layout", "sync=async", "--workers", 2, "--accumulate", 2], "--accumulate"),
        (["--layout", "sync=async", "--workers", 2, "--backend", "gloo"], "--backend"),
        (["--layout", "sync=async", "--workers", 2, "--weights", "private"], "--weights"),
        (["--layout", "sync=async", "--workers", 2, "--precision", "fp16"], "fp16"),
        (["--layout", "sync=async", "--workers", 33], "33"),
        (["--layout", "sync=stale:-1", "--workers", 2], "stale"),
        (["--layout", "sync=async", "--workers", 2, "--remedy", "none:3"], "remedy"),
    ):
        _, err = said(["train", *TINY, "--quiet", "--steps", 2, *options], 2)
        check(words in err and len([line for line in err.splitlines() if "the last counts" not in line]) == 1, f"{options}: {err}")


if __name__ == "__main__":
    main(globals())

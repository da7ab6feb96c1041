"""cohort join: workers that come to a training that listens, on this host and from another, and leave it again; who is turned away."""
import os
import re
import signal
import subprocess
import time

from support import COHORT, Folder, TINY as TINY_MODEL, check, finish, main, run, run_ok, start, steps_in, wait_for
from test_async import record, samples_of
from test_hosts import Hosts, TOKEN

TINY = [*TINY_MODEL, "--threads", 1, "--quiet"]
SLOW = "slow:0:8"
ALL_SLOW = "slow:0:40,slow:1:40"  # Ten seconds and more until somebody joins who is not slow.
SECRET = {**os.environ, "COHORT_TOKEN": TOKEN}


def listening(process):
    """Its lines up to the one that says where."""
    lines = []
    while not lines or "workers may join" not in lines[-1]:
        lines.append(process.stderr.readline())
        check(lines[-1] != "", f"it ended: {lines}")
    return re.search(r"cohort join (\S+)$", lines[-1].strip()).group(1)


def begin(folder, name, *options, steps=1000000):
    process = start(["train", *TINY, "--run", folder / name, "--steps", steps, "--log-every", 1, "--layout", "sync=async", "--inject", SLOW, "--listen", "127.0.0.1:0", *options], env=SECRET)
    return process, listening(process)


def read_until(process, words):
    lines = []
    while not lines or words not in lines[-1]:
        lines.append(process.stderr.readline())
        check(lines[-1] != "", f"it ended before '{words}': {lines}")
    return lines


def test_a_worker_joins_works_and_leaves():
    with Folder() as folder:
        process, where = begin(folder, "j", "--workers", 2)
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        read_until(joiner, "joined as worker 2")
        check(re.search(r"first push [\d.]+ m?s after it asked to join$", read_until(joiner, "first push")[-1].strip()), "its first push is not said")
        time.sleep(0.5)
        joiner.kill()
        finish(joiner)
        check("worker 2 is lost after" in read_until(process, "is lost")[-1], "it is not named")
        other = start(["join", where, "--threads", 1], env=SECRET)  # Another worker, with a number of its own.
        read_until(other, "joined as worker 3")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130, f"{code} {err}")
        code, _, said = finish(other)
        check(code == 0 and "the training is over" in said and "made here" in said, f"{code} {said}")
        account, steps = record(folder / "j", "async"), steps_in(folder / "j")
        check(len(account["workers"]) == 4 and all(worker["pushes"] > 0 for worker in account["workers"]), f"{account['workers']}")
        # The accounts of those who came are kept, and the next has the next number.
        process, where = begin(folder, "j", "--resume")
        other = start(["join", where, "--threads", 1], env=SECRET)
        read_until(other, "joined as worker 4")
        time.sleep(0.5)
        check(steps_in(folder / "j") > steps, "it did not go on")
        process.send_signal(signal.SIGINT)
        finish(process), finish(other)
        check(len(record(folder / "j", "async")["workers"]) == 5, "five workers in all")


def test_a_worker_that_is_told_to_stop_leaves():
    """After the work item that it has: nothing is lost, and nobody has died. With the next number another comes."""
    with Folder() as folder:
        process, where = begin(folder, "l", "--workers", 1)
        for number, how in ((1, signal.SIGINT), (2, signal.SIGTERM)):
            joiner = start(["join", where, "--threads", 1], env=SECRET)
            read_until(joiner, f"joined as worker {number}")
            read_until(joiner, "first push")
            joiner.send_signal(how)
            code, _, said = finish(joiner)
            check(code == 130 and re.search(r"left the training; [1-9]\d* push(es)? of it w", said), f"{code} {said}")
            lines = read_until(process, f"worker {number} has left after")
            check(not any("lost" in line for line in lines) and "goes on with 1 worker" in lines[-1], f"{lines}")
        before = steps_in(folder / "l")
        wait_for(lambda: steps_in(folder / "l") > before + 2, "the training goes on")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        account = record(folder / "l", "async")
        check(code == 130 and "; 2 left" in err, f"{code} {err}")
        check([worker["left"] for worker in account["workers"]] == [0, 1, 1] and account["deaths"] == account["lost"] == 0 and account["left"] == 2, f"{account}")
        check(account["samples"] == samples_of(folder / "l", steps_in(folder / "l")), f"{account}")


def test_a_joiner_that_dies_on_its_way_is_named():
    """From when it has its number, whether it has come in by then or not."""
    with Folder() as folder:
        process, where = begin(folder, "w", "--workers", 1)
        for number in range(1, 9):
            joiner = start(["join", where, "--threads", 1], env=SECRET)
            read_until(joiner, f"joined as worker {number}")
            joiner.kill()
            read_until(process, f"worker {number} is lost after")
            finish(joiner)
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130 and [worker["deaths"] for worker in record(folder / "w", "async")["workers"]] == [0, *[1] * 8], f"{code} {err}")


def test_each_sample_counts_once_whoever_comes():
    for sync in ("queue", "stale:3"):
        with Folder() as folder:
            process, where = begin(folder, "c", "--workers", 2, "--layout", f"sync={sync}", "--inject", ALL_SLOW, steps=600)
            joiners = [start(["join", where, "--threads", 1], env=SECRET) for _ in range(2)]
            read_until(process, "worker 3 joins")
            code, _, err = finish(process)
            check(code == 0, err)
            for joiner in joiners:
                code, _, said = finish(joiner)
                check(code == 0, f"{code} {said}")
            account = record(folder / "c", "async")
            check(account["samples"] == samples_of(folder / "c", 600) == sum(worker["samples"] for worker in account["workers"]), f"{account}")


def test_a_training_that_somebody_had_joined_is_resumed_without_them():
    with Folder() as folder:
        process, where = begin(folder, "g", "--workers", 2)
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        read_until(joiner, "first push")
        process.send_signal(signal.SIGINT)
        check(finish(process)[0] == 130, "the training was not interrupted")
        finish(joiner)
        step = record(folder / "g", "checkpoint")["step"]
        run_ok(["train", "--run", folder / "g", "--resume", "--quiet", "--listen", "", "--steps", step + 20])
        account = record(folder / "g", "async")
        check(account["samples"] == samples_of(folder / "g", step + 20), f"{account}")


def test_the_end_of_the_training_is_the_end_of_who_joined():
    with Folder() as folder:
        process, where = begin(folder, "e", "--workers", 1)
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        read_until(process, "worker 1 joins")
        wait_for(lambda: steps_in(folder / "e") > 3, "steps")
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        began = time.monotonic()
        code, _, err = finish(joiner)
        check(code == 4 and "rank 0" in err and time.monotonic() - began < 20, f"{code} {err}")


def test_a_joiner_that_fails_is_lost_and_the_training_goes_on():
    with Folder() as folder:
        big = ["--model", "fc:hidden=8000", "--data", "synthetic:1x16x16,classes=4,samples=512", "--global-batch", 16]
        process = start(["train", *TINY, *big, "--run", folder / "f", "--steps", 1000000, "--log-every", 1, "--layout", "sync=async", "--listen", "127.0.0.1:0"], env=SECRET)
        where = listening(process)
        wait_for(lambda: steps_in(folder / "f") > 2, "steps")
        ended = 0
        for kib in range(330_000, 600_000, 15_000):  # Somewhere there it has its model and not the memory to compute.
            joiner = subprocess.run(["bash", "-c", f"ulimit -v {kib}; exec {COHORT} join {where} --threads 1 & sleep 1.2; kill -KILL $!"], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=SECRET)
            # Else it ended before rank 0 had work for it, or was killed before it could tell.
            ended += all(words in joiner.stderr for words in ("first push", "can not go on", "No such process"))
            check("#0" not in joiner.stderr and joiner.stderr.count("\n") < 8, joiner.stderr)
            if ended:
                break
        time.sleep(3 if ended else 0)  # What it said at last is read by a thread that other processes keep waiting.
        before = steps_in(folder / "f")
        wait_for(lambda: steps_in(folder / "f") > before + 2 or process.poll() is not None, "the training goes on")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130, f"{code} {err}")
        check(not ended or "it failed" in err, f"it is not named: {err}")


def test_who_may_not_join_is_told_why_in_one_line():
    with Folder() as folder:
        process, where = begin(folder, "w", "--workers", 1)
        no_secret = {key: value for key, value in os.environ.items() if key != "COHORT_TOKEN"}
        port = where.rsplit(":", 1)[1]
        for arguments, environment, expected, words in (
            ([where], no_secret, 2, "COHORT_TOKEN"),
            ([where, "--timeout", 3], {**SECRET, "COHORT_TOKEN": "another token of the tests"}, 4, ""),
            ([where], {**SECRET, "COHORT_TOKEN": "short"}, 4, "can be guessed"),
            ([where, "--data", "synthetic:1x8x8,classes=4,samples=300"], SECRET, 2, "other data"),
            (["127.0.0.1:1", "--timeout", 1], SECRET, 4, "127.0.0.1:1"),
            ([where.replace(port, "0")], SECRET, 2, "port 0"),
            (["127.0.0.1"], SECRET, 2, "HOST:PORT"),
            ([], SECRET, 2, "no address given"),
            ([where, "--steps", 3], SECRET, 2, "steps"),
        ):
            code, out, err = run(["join", *arguments], env=environment)
            check(code == expected and words in err and len([line for line in err.splitlines() if "asking" not in line]) == 1 and not out, f"{arguments}: {code} {out}{err}")
        check(process.poll() is None, "that ended the training")
        # Who was turned away was never there.
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        read_until(joiner, "joined as worker 1")
        check("worker 1 joins" in read_until(process, "joins")[-1], "the first who comes in is worker 1")
        read_until(joiner, "first push")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130, "the training did not go on")
        finish(joiner)
        check(len(record(folder / "w", "async")["workers"]) == 2, "two workers")
    for options, environment, words in (
        (["--layout", "sync=async", "--listen", "127.0.0.1:0"], no_secret, "needs a secret"),
        (["--layout", "sync=async", "--listen", "127.0.0.1"], SECRET, "HOST:PORT"),
        (["--layout", "sync=async", "--listen", "127.0.0.1:70000"], SECRET, "HOST:PORT"),
        (["--listen", "127.0.0.1:0"], SECRET, "would do nothing here"),
        (["--layout", "sync=local:2", "--workers", 2, "--listen", "127.0.0.1:0"], SECRET, "would do nothing here"),
        (["--layout", "sync=async", "--virtual", "workers=2", "--listen", "127.0.0.1:0"], SECRET, "would do nothing here"),
    ):
        code, out, err = run(["train", *TINY, "--steps", 2, *options], env=environment)
        check(code == 2 and words in err and err.count("\n") == 1 and not out, f"{options}: {code} {out}{err}")


def test_a_worker_from_another_host():
    with Hosts(2) as hosts, Folder() as folder:
        def there(host, *arguments):
            """Host 1 sees no process of host 0 either, as it is."""
            return subprocess.Popen(["ip", "netns", "exec", hosts.names[host], *(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if host else []), COHORT, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SECRET, start_new_session=True)
        process = there(0, "train", *TINY, "--run", folder / "h", "--steps", 1000, "--layout", "sync=async", "--inject", ALL_SLOW, "--workers", 2, "--listen", "10.77.0.1:0")
        where = listening(process)
        check(where.startswith("10.77.0.1:"), where)
        sent = hosts.sent_bytes(0)
        joiner = there(1, "join", where, "--threads", 1)
        code, _, err = finish(process)
        check(code == 0, err)
        code, _, said = finish(joiner)
        check(code == 0 and re.search(r"[1-9]\d* push", said), f"{code} {said}")
        account = record(folder / "h", "async")
        check(account["workers"][2]["pushes"] > 0 and account["samples"] == samples_of(folder / "h", 1000), f"{account}")
        # Versions go over the link to that worker alone: there is no memory that the two share.
        check(hosts.sent_bytes(0) - sent > account["workers"][2]["pushes"] * 1000, "they shared memory?")


if __name__ == "__main__":
    main(globals())

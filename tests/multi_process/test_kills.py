"""Ranks killed at random moments, from their start to their end, in every way of synchronising. COHORT_TEST_KILLS=N: so many kills in each (3); each must have hit.

Where workers do not wait a lost one is named and the training goes on, and each sample counts once; rank 0's end, and any rank's with local steps, is exit code 4, and the last checkpoint loads and goes on.
Nothing stays behind: no process, no file, no shared memory, no port."""
import json
import math
import os
import random
import re
import signal
import socket
import time

from support import Folder, TINY as TINY_MODEL, check, children, finish, main, run_ok, start, steps_in, wait_for
from test_async import record, samples_of
from test_hosts import TOKEN

NUM_KILLS = int(os.environ.get("COHORT_TEST_KILLS", 3))
STEPS = 60
TINY = [*TINY_MODEL, "--threads", 1, "--quiet", "--workers", 3, "--steps", STEPS, "--checkpoint-every", 12, "--eval-every", 12, "--inject", "slow:0:6,slow:1:6,slow:2:6"]


class Mode:
    """Trainings of one mode; `seconds` is how long one takes from when its ranks are there."""

    def __init__(self, folder, sync, *options):
        self.folder, self.sync, self.options, self.generator, self.number = folder, sync, options, random.Random(sync), 0
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, "COHORT_TOKEN": TOKEN, "TMPDIR": str(self.temporary)}
        self.seconds = 0
        code, killed, err, _ = self.train([])
        check(code == 0 and not killed, f"{sync}: {code} {err}")

    def train(self, victims):
        """Exit code, the victims that the job says were killed, its lines, and the run's folder."""
        self.number += 1
        run = self.folder / f"r{self.number}"
        process = start(["train", *TINY, "--layout", f"sync={self.sync}", "--run", run, *self.options], env=self.environment)
        ranks = [os.pidfd_open(pid) for pid in wait_for(lambda: len(children(process.pid)) == 3 and sorted(children(process.pid)), "three ranks")]
        began = time.monotonic()
        for victim in victims:  # The second somewhere after the first.
            time.sleep(self.generator.uniform(0, self.seconds / len(victims)))
            try:
                signal.pidfd_send_signal(ranks[victim], signal.SIGKILL)
            except ProcessLookupError:
                pass  # It had ended.
        code, _, err = finish(process)
        if not victims:
            self.seconds = 0.8 * (time.monotonic() - began)  # Then it writes its report.
        for descriptor in ranks:
            os.close(descriptor)
        check(not list(self.temporary.iterdir()), f"files left behind: {list(self.temporary.iterdir())}")
        for port in re.findall(r"cohort join 127\.0\.0\.1:(\d+)", err):
            with socket.socket() as caller:
                check(caller.connect_ex(("127.0.0.1", int(port))) != 0, f"somebody still listens at port {port}")
        return code, set(victims) & {int(rank) for rank in re.findall(r"rank (\d+) \(pid \d+\) was killed by signal 9 \(SIGKILL\)", err)}, err, run

    def kill(self, choose, judge, enough=lambda: True):
        """Until so many kills have hit, and it is `enough`. `choose` says whom; `judge(code, killed, err, run)` what must hold."""
        hits = num_late = 0
        while hits < NUM_KILLS or not enough():
            check(hits < 10 * NUM_KILLS, f"{self.sync}: none of {hits} kills hit at work")
            code, killed, err, run = self.train(choose(self.generator))
            hits += len(killed)
            num_late += not killed
            check(num_late <= 2 * NUM_KILLS + 5, f"{self.sync}: {hits} kills hit, and {num_late} came too late")
            if killed:
                judge(code, killed, err, run)
            else:
                check(code == 0, f"{self.sync}: nobody was killed, and exit code {code}: {err}")
        print(f"{self.sync}: {hits} kills hit in {self.number - 1} trainings, {num_late} trainings had ended", flush=True)


def goes_on(run):
    """From its last checkpoint, where it had saved one, to its end."""
    if (run / "checkpoints" / "latest").exists():
        run_ok(["checkpoint", "verify", run])
        run_ok(["train", "--run", run, "--resume", "--quiet", "--listen", ""])
        check(steps_in(run) == STEPS, f"it went on to step {steps_in(run)}")


def is_whole(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    check(all(math.isfinite(line["loss"]) for line in lines if line["event"] in ("step", "done")), f"losses of {run}")
    run_ok(["checkpoint", "verify", run])


def kill_served(sync, *options):
    with Folder() as folder:
        mode, at_work = Mode(folder, sync, *options), []

        def judge(code, killed, err, run):
            if 0 in killed:
                check(code == 4, f"{sync}: ranks {killed} were killed, and exit code {code}: {err}")
                goes_on(run)
            else:
                check(code == 0, f"{sync}: workers {killed} were killed, and exit code {code}: {err}")
                is_whole(run)
            if (run / "checkpoints" / "latest").exists():
                account = record(run, "async")
                check(account["samples"] == samples_of(run, STEPS) == sum(worker["samples"] for worker in account["workers"]), f"{sync}: {killed}: {account}")
                at_work.append(account["deaths"] > 0 or 0 in killed)
        mode.kill(lambda generator: generator.choice(([1], [2], [1, 2], [2, 1], [0])), judge, enough=lambda: any(at_work))    # On a busy machine most of a short training is its start.


def kill_local(sync):
    with Folder() as folder:
        mode = Mode(folder, sync)

        def judge(code, killed, err, run):
            check(code == 4, f"{sync}: ranks {killed} were killed, and exit code {code}: {err}")
            goes_on(run)
        mode.kill(lambda generator: [generator.randrange(3)], judge)


def test_kills_with_async():
    kill_served("async", "--listen", "127.0.0.1:0")


def test_kills_with_compressed_pushes():
    kill_served("async,compress=int8")


def test_kills_with_stale():
    kill_served("stale:2")


def test_kills_with_queue():
    kill_served("queue")


def test_kills_with_local_steps():
    kill_local("local:4")


def test_kills_with_diloco():
    kill_local("diloco:4")


if __name__ == "__main__":
    main(globals())

#!/usr/bin/env python3
"""How long a training whose workers do not wait takes to get over a lost worker, and to get a new one.

    bench/async_recovery.py [--workers 3] [--base 8] [--model fc:hidden=256] [--data SPEC] [--global-batch 256] [--rounds 5] [--json]

Each round starts `train --layout sync=async --listen`, every worker slowed down by --base (--inject slow), so that cores are not what they wait for, and kills the last worker with SIGKILL. Then:
  named     seconds from the kill until the training says that it is lost
  back      seconds from the kill until the first window of --window steps, all made after the kill, goes at 90 % of what the workers that are left make of the pace before
  joined    seconds from the start of `cohort join` until it is let in (the program's own start in it)
  first     seconds from when it asked to join until its first push, as it says itself; it is not slowed down
  whole     seconds from the start of `cohort join` until the first such window at 90 % of the pace before the kill
Times are when a line of metrics.jsonl was seen, looked for every 2 ms. Medians, with least and most.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, children, finish, start
from test_hosts import TOKEN

SECRET = {**os.environ, "COHORT_TOKEN": TOKEN}


class Lines:
    """What a process says, with when it was seen."""

    def __init__(self, process):
        self.seen, self.process = [], process
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stderr:
            self.seen.append((time.monotonic(), line))

    def wait(self, words, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for when, line in list(self.seen):
                if words in line:
                    return when, line
            time.sleep(0.002)
        raise SystemExit(f"'{words}' was not said: {self.seen}")


class Steps:
    """When each step was seen in the metrics."""

    def __init__(self, path):
        self.path, self.at, self.times = path, 0, []

    def look(self):
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8") as file:
            file.seek(self.at)
            while (line := file.readline()).endswith("\n"):
                self.at = file.tell()
                if '"step"' in line and json.loads(line)["event"] == "step":
                    self.times.append(time.monotonic())

    def wait(self, condition, timeout=60):
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise SystemExit("the pace did not come back within a minute")
            time.sleep(0.002)
            self.look()

    def pace(self, window, since):
        times = [when for when in self.times if when >= since]
        return window / (times[-1] - times[-1 - window]) if len(times) > window else 0


def one_round(options, folder):
    faults = ",".join(f"slow:{rank}:{options.base}" for rank in range(options.workers))
    process = start(["train", "--model", options.model, "--data", options.data, "--global-batch", options.global_batch, "--optimizer", "sgd", "--lr", 0.05, "--steps", 1000000, "--eval-every", 1000000, "--checkpoint-every", 1000000,
                     "--threads", 1, "--workers", options.workers, "--layout", "sync=async", "--inject", faults, "--quiet", "--log-every", 1, "--listen", "127.0.0.1:0", "--run", folder / "run"], env=SECRET)
    try:
        said, steps = Lines(process), Steps(folder / "run" / "metrics.jsonl")
        where = re.search(r"cohort join (\S+)$", said.wait("workers may join")[1].strip()).group(1)
        steps.wait(lambda: len(steps.times) > 3 * options.window)
        before = steps.pace(2 * options.window, 0)
        killed = time.monotonic()
        os.kill(sorted(children(process.pid))[-1], signal.SIGKILL)
        left = 0.9 * before * (options.workers - 1) / options.workers
        steps.wait(lambda: steps.pace(options.window, killed) >= left)
        found = {"back": time.monotonic() - killed, "named": said.wait("is lost")[0] - killed}
        asked = time.monotonic()
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        try:
            his = Lines(joiner)
            found["joined"] = his.wait("joined as worker")[0] - asked
            number, unit = re.search(r"first push ([\d.]+) (\w+) after", his.wait("first push")[1]).groups()
            found["first"] = float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]
            steps.wait(lambda: steps.pace(options.window, asked) >= 0.9 * before)
            found["whole"] = time.monotonic() - asked
        finally:
            joiner.kill()
            joiner.wait()
        return found
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except Exception:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("model", "fc:hidden=256"), ("data", "synthetic:1x28x28,classes=10,samples=8192")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("workers", 3), ("base", 8), ("global-batch", 256), ("window", 10), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with Folder() as folder:
            rounds.append(one_round(options, folder))
    for name in ("named", "back", "joined", "first", "whole"):
        values = sorted(found[name] for found in rounds)
        row = {"what": name, "seconds": statistics.median(values), "least": values[0], "most": values[-1], "rounds": len(values)}
        print(json.dumps(row) if options.json else f"{name:7} {row['seconds']:6.2f} s ({row['least']:.2f} to {row['most']:.2f})")


if __name__ == "__main__":
    main()

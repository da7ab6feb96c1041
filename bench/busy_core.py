#!/usr/bin/env python3
"""One worker beside a program that keeps one core busy, and alone: seconds of a step with threads that wait awake, and as `cohort train` starts them.
    bench/busy_core.py [--model cnn] [--steps 60] [--rounds 5]

    bench/busy_core.py --exchange [--rounds 9] [--other PROGRAM]

With --exchange: the median 4-byte all-reduce of two ranks, alone and beside the busy core, of this program and, in turn, of another build of it."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

COHORT = os.environ.get("COHORT_BIN", str(pathlib.Path(__file__).parents[1] / "build/release/bin/cohort"))


def step_seconds(options, **variables):
    """The median step of a training of its own."""
    plain = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        words = [COHORT, "train", "--model", options.model, "--data", options.data, "--steps", str(options.steps), "--val-samples", "100", "--quiet", "--json", "--run", folder + "/run"]
        out = subprocess.run(words, env={**plain, **variables}, capture_output=True, text=True, check=True).stdout
    return next(line["measured_step_seconds"] for line in map(json.loads, out.splitlines()) if line["event"] == "done")


def exchange_seconds(program):
    words = [program, "bench", "collectives", "--sizes", "4", "--ops", "allreduce", "--backends", "shm", "--worker-counts", "2", "--rounds", "1", "--json"]
    # A program finds its libraries beside itself, wherever it was built.
    out = subprocess.run(words, env={**os.environ, "LD_LIBRARY_PATH": str(pathlib.Path(program).parents[1] / "lib")}, capture_output=True, text=True, check=True).stdout
    return next(line["seconds"] for line in map(json.loads, out.splitlines()) if line.get("op") == "allreduce")


def beside(name):
    return subprocess.Popen([sys.executable, "-c", "while True: pass"]) if name != "alone" else None


def compare_exchanges(options):
    programs = {"this": COHORT, **({"other": options.other} if options.other else {})}
    for name in ("alone", "beside a busy core"):
        seconds = {which: [] for which in programs}
        for _ in range(options.rounds):
            busy = beside(name)
            try:
                for which, program in programs.items():
                    seconds[which].append(exchange_seconds(program))
            finally:
                if busy:
                    busy.kill()
                    busy.wait()
        for which, values in seconds.items():
            print(f"{name:20} {which:6} {1e6 * statistics.median(values):8.2f} us a 4-byte all-reduce ({1e6 * min(values):.2f} to {1e6 * max(values):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchange", action="store_true")
    parser.add_argument("--other", help="with --exchange: BUILD/bin/cohort of another build")
    options = parser.parse_args()
    if options.exchange:
        return compare_exchanges(options)
    print(f"{options.model}, one worker on {len(os.sched_getaffinity(0))} cores, median step of {options.steps}, {options.rounds} rounds in turn")
    for name in ("alone", "beside a busy core"):
        seconds = {"awake": [], "as started": [], "asleep": []}
        for _ in range(options.rounds):
            busy = beside(name)
            try:
                seconds["awake"].append(step_seconds(options, OMP_WAIT_POLICY="active"))
                seconds["as started"].append(step_seconds(options))
                seconds["asleep"].append(step_seconds(options, OMP_WAIT_POLICY="passive"))
            finally:
                if busy:
                    busy.kill()
                    busy.wait()
        for how, values in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(values, seconds["awake"]))
            print(f"{name:20} {how:11} {1e3 * statistics.median(values):8.2f} ms a step ({1e3 * min(values):.2f} to {1e3 * max(values):.2f}), {ratio:.2f} of awake")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a change costs a training step: two builds of the program measure in turn, and the medians stand side by side.

    bench/before_after.py BEFORE AFTER [--rounds 5] [--layouts dp=2,zero=2] [-- further options of `cohort bench step`]

BEFORE and AFTER are programs (build/release/bin/cohort of two checkouts; each loads the libraries beside it). --layouts are separated by semicolons; `private` is dp with weights of each rank's own.
A round runs both, in changing order, so what the machine does meanwhile meets both alike. The last column is the median over the rounds of after / before, with the least and the largest.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def step_seconds(program, layout, options):
    """Step times of the row `cohort` of each workload."""
    chosen = ["--weights", "private"] if layout == "private" else ["--layout", layout]
    libraries = str(pathlib.Path(program).resolve().parent.parent / "lib")
    done = subprocess.run([program, "bench", "step", "--peers", "none", "--rounds", "1", "--json", *chosen, *options], capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": libraries})
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr.strip()}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["workload"]: row["step_seconds"] for row in rows if row.get("system") == "cohort"}


def main():
    arguments = sys.argv[1:]
    own, options = (arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]) if "--" in arguments else (arguments, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layouts", default="private;dp=2;zero=2")
    chosen = parser.parse_args(own)
    print("workload   layout    before ms  after ms  after / before (least to largest)")
    for layout in chosen.layouts.split(";"):
        measured = []
        for index in range(chosen.rounds):
            order = (chosen.before, chosen.after) if index % 2 == 0 else (chosen.after, chosen.before)
            times = {program: step_seconds(program, layout, options) for program in order}
            measured.append((times[chosen.before], times[chosen.after]))
        for workload in measured[0][0]:
            before = [times[workload] for times, _ in measured]
            after = [times[workload] for _, times in measured]
            ratios = sorted(late / early for early, late in zip(before, after))
            print(f"{workload:10} {layout:9} {1e3 * statistics.median(before):9.3f} {1e3 * statistics.median(after):9.3f}  {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)


if __name__ == "__main__":
    main()

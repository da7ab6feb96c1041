#!/usr/bin/env python3
"""The ported programs of examples/ on 1 worker, on 2, on 2 that exchange no gradients (what their halves of the batch take, side by side), and on 2 with an all-reduce
over Gloo written by hand after backward(): milliseconds a step, each in turn in one run, medians and extremes, and the medians of the ratios of a round.

    bench/ports.py [--build build/release] [--rounds 7] [--ports rnn,gan]        needs: cmake --build build/release --target bench_ports"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess

PORTS = ["classifier", "gan", "rnn", "ppo", "finetune"]


def milliseconds(program, *arguments, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    # By hand the training is another one where batch norm is, so the program's own comparison may fail.
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, env=environment)
    found = re.findall(r"([\d.]+) ms a step", result.stdout)
    if not found:
        raise SystemExit(f"{program} {' '.join(arguments)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return float(found[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=pathlib.Path(__file__).parents[1] / "build/release", type=pathlib.Path)
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--ports", default=",".join(PORTS))
    options = parser.parse_args()
    print("| port | 1 worker | 2 workers | 2, no exchange | 2 by hand, Gloo | 1 worker / 2 | 1 worker / no exchange | by hand / 2 |")
    print("|---|---|---|---|---|---|---|---|")
    for port in options.ports.split(","):
        ours, by_hand = options.build / f"bin/examples/port_{port}", options.build / f"bin/port_{port}_by_hand"
        ways = {"one": lambda: milliseconds(ours, "--workers", "1"),
                "two": lambda: milliseconds(ours, "--workers", "2"),
                "none": lambda: milliseconds(by_hand, "--workers", "2", PORTS_EXCHANGE="none"),
                "hand": lambda: milliseconds(by_hand, "--workers", "2", "--backend", "gloo")}
        times = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, measure in ways.items():
                times[name].append(measure())
        told = [f"{statistics.median(seconds):.3g} ({min(seconds):.3g} to {max(seconds):.3g})" for seconds in times.values()]
        for over, under in (("one", "two"), ("one", "none"), ("hand", "two")):
            told.append(f"{statistics.median(a / b for a, b in zip(times[over], times[under])):.2f}")
        print(f"| port_{port} | " + " | ".join(told) + " |", flush=True)


if __name__ == "__main__":
    main()

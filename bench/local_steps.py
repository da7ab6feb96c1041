#!/usr/bin/env python3
"""Workers that train by themselves between exchanges beside workers that agree in every step: throughput, and what the training reaches after as many samples.

    bench/local_steps.py [--modes step,local:8,diloco:8] [--cells even,slow,100] [--model cnn] [--data fashion-mnist] [--steps 320] [--seeds 3] [--json]

Cells: `even` is two workers that share this machine's memory; `slow`: the second takes four times as long; a number: two hosts (network name spaces of this machine; root needed) joined by a link of so many
Mbit/s, limited by `tc`. All modes of a seed run one after the other, and ratios to the first mode are of the same seed. Throughput is of all steps but those up to the first exchange; losses are of the validation samples.
"""
import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run_ok
from test_hosts import Hosts, lines_of


def train(cell, options, mode, seed, folder):
    arguments = ["--model", options.model, "--data", options.data, "--val-samples", 2000, "--global-batch", 128, "--optimizer", options.optimizer, "--lr", options.lr, "--steps", options.steps,
                 "--eval-every", options.steps, "--seed", seed, "--threads", 1, "--layout", f"dp=2,sync={mode}", "--quiet", "--json", "--run", folder / f"{mode}-{seed}"]
    if cell == "slow":
        arguments += ["--inject", "slow:1:4"]
    if cell.isdigit():
        with Hosts(2, megabits=int(cell)) as hosts:
            lines = lines_of(hosts.train([0, 1], arguments))
    else:
        lines = run_ok(["train", *arguments], timeout=600)
    seconds = [line["step_seconds"] for line in lines if line["event"] == "step"][1:]
    done = next(line for line in lines if line["event"] == "done")
    return {"samples_per_second": 128 * len(seconds) / sum(seconds), "val_loss": done["val_loss"], "val_error": done["val_error"]}


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("modes", "step,local:8,diloco:8"), ("cells", "even,slow,100"), ("model", "cnn"), ("data", "fashion-mnist"), ("optimizer", "momentum"), ("lr", "0.03")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    modes = options.modes.split(",")
    for cell in options.cells.split(","):
        found = {mode: [] for mode in modes}
        for seed in range(1, options.seeds + 1):
            for mode in modes:
                with Folder() as folder:
                    found[mode].append(train(cell, options, mode, seed, folder))
        for mode in modes:
            speeds = [run["samples_per_second"] for run in found[mode]]
            ratios = [speed / base["samples_per_second"] for speed, base in zip(speeds, found[modes[0]])]
            row = {"cell": cell, "sync": mode, "samples_per_second": median(speeds), "times_the_first": median(ratios), "lowest": min(ratios), "highest": max(ratios),
                   **{key: median([run[key] for run in found[mode]]) for key in ("val_loss", "val_error")}}
            text = "{cell:>6} {sync:10} {samples_per_second:9.0f} samples/s  {times_the_first:5.2f} times ({lowest:.2f} to {highest:.2f})  validation loss {val_loss:.4f}, error {val_error:.4f}"
            print(json.dumps(row) if options.json else text.format(**row), flush=True)


if __name__ == "__main__":
    main()

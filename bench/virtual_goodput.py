#!/usr/bin/env python3
"""Goodput with workers that die, under the virtual clock: samples a virtual second beside the same mode where nobody dies, and what the training reaches.

    bench/virtual_goodput.py [--modes step,async,stale:2,queue,diloco:4] [--mtbf 86400,21600,7200] [--workers 64] [--compute 4] [--restart 60] [--checkpoint-every 20] [--steps 300] [--seeds 3] [--json]

Modes, each with every mean lifetime of a worker (seconds) and without deaths: with step a death ends the job, which goes back to its last checkpoint after the restart; with diloco what the worker learnt in its round is lost and nobody
waits for it; with the others its work item goes to another. Medians over the seeds, ratios of the same seed; all numbers but the wall clock's are the same on every machine.
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


def train(options, mode, mtbf, seed):
    clock = f"workers={options.workers},speed=lognormal:0.1,link=1ms:10Gbit,compute={options.compute}" + (f",mtbf={mtbf},restart={options.restart}" if mtbf else "")
    with Folder() as folder:
        run_ok(["train", "--model", options.model, "--data", options.data, "--val-samples", 2000, "--global-batch", 4 * options.workers, "--optimizer", options.optimizer, "--lr", options.lr, "--steps", options.steps,
                "--eval-every", options.steps, "--checkpoint-every", options.checkpoint_every, "--seed", seed, "--threads", 1, "--layout", f"sync={mode}", "--virtual", clock, "--quiet", "--run", folder / "run"], timeout=600)
        lines = {line["event"]: line for line in map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())}
    return {**{key: lines["done"][key] for key in ("virtual_seconds", "val_loss", "val_error")},
            **{key: lines["async"][key] for key in ("samples_per_virtual_second", "deaths", "lost", "staleness_median", "staleness_tail")}}


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("modes", "step,async,stale:2,queue,diloco:4"), ("mtbf", "86400,21600,7200"), ("model", "fc:hidden=64"), ("data", "synthetic:1x16x16,classes=10,samples=6000,noise=4"), ("optimizer", "sgd"), ("lr", "0.1")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("workers", 64), ("compute", 4), ("restart", 60), ("checkpoint-every", 20), ("steps", 300), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for mode in options.modes.split(","):
        found = {mtbf: [train(options, mode, mtbf, seed) for seed in range(1, options.seeds + 1)] for mtbf in (0, *map(int, options.mtbf.split(",")))}
        for mtbf, runs in found.items():
            row = {"sync": mode, "mtbf_seconds": mtbf or None, **{key: median([run[key] for run in runs]) for key in runs[0]},
                   "goodput": median([run["samples_per_virtual_second"] / alive["samples_per_virtual_second"] for run, alive in zip(runs, found[0])])}
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print(f"sync={mode:8} mtbf {mtbf or 'never':>6}  goodput {row['goodput']:6.1%}  {row['samples_per_virtual_second']:6.1f} samples/s  {row['deaths']:4} deaths {row['lost']:4} lost  "
                      f"late {row['staleness_median']:.0f}, 99 % {row['staleness_tail']:.0f}  val loss {row['val_loss']:.4f}  error {row['val_error']:.2%}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What real workers that do not wait are worth when one of them is slow: samples a second of each mode beside the sum of the workers' own speeds, each measured alone.

    bench/async_workers.py [--modes step,stale:2,async] [--workers 4] [--factor 4] [--base 8] [--model fc:hidden=256] [--data SPEC] [--global-batch 256] [--steps 150] [--rounds 3] [--json]

Every worker is slowed down by --base and the last by --base x --factor (--inject slow: it sleeps), so that cores are not what they wait for. What a worker sleeps is in
proportion to what it computed, so what programs beside it take is multiplied too: the second figure compares with the workers' speeds in the same run. Runs alternate; medians of the rounds.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run_ok


def samples_a_second(options, folder, workers, batch, slow, mode):
    faults = ",".join(f"slow:{rank}:{factor}" for rank, factor in enumerate(slow))
    run_ok(["train", "--model", options.model, "--data", options.data, "--global-batch", batch, "--optimizer", "sgd", "--lr", 0.05, "--steps", options.steps, "--eval-every", options.steps, "--checkpoint-every", options.steps,
            "--threads", 1, "--workers", workers, "--layout", f"sync={mode}", "--inject", faults, "--quiet", "--log-every", 1, "--run", folder], timeout=600)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"][options.steps // 5:]
    found = {"samples_per_second": len(steps) * batch / sum(line["step_seconds"] for line in steps)}
    for line in lines:
        if line["event"] == "async":
            found |= {key: line[key] for key in ("staleness_median", "staleness_tail")}
            seconds = {key: sum(worker[key] for worker in line["workers"]) for key in ("computing_seconds", "waiting_seconds", "moving_seconds")}
            found |= {"computing": seconds["computing_seconds"] / sum(seconds.values()),
                      # What the workers would do if they computed all the time at the speeds that they had in this very run.
                      "of_own": found["samples_per_second"] / sum(worker["samples"] / worker["computing_seconds"] for worker in line["workers"])}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("modes", "step,stale:2,async"), ("model", "fc:hidden=256"), ("data", "synthetic:1x28x28,classes=10,samples=8192")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("workers", 4), ("factor", 4), ("base", 8), ("global-batch", 256), ("steps", 150), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    slow = [options.base] * (options.workers - 1) + [options.base * options.factor]
    share = options.global_batch // options.workers
    found = {}
    for _ in range(options.rounds):
        with Folder() as folder:
            alone = [samples_a_second(options, folder / f"alone-{factor}", 1, share, [factor], "step")["samples_per_second"] for factor in sorted(set(slow))]
            found.setdefault("sum", []).append({"samples_per_second": alone[0] * (options.workers - 1) + alone[-1]})
            for mode in options.modes.split(","):
                found.setdefault(mode, []).append(samples_a_second(options, folder / mode.replace(":", "-"), options.workers, options.global_batch, slow, mode))
    for name, runs in found.items():
        row = {"sync": name, **{key: statistics.median(run[key] for run in runs) for key in runs[0]}}
        row["of_sum"] = statistics.median(run["samples_per_second"] / whole["samples_per_second"] for run, whole in zip(runs, found["sum"]))
        late = f"  {row['of_own']:.1%} of what they would do without messages, computing {row['computing']:.1%} of the time; late {row['staleness_median']:.0f}, 99 % {row['staleness_tail']:.0f}" if "staleness_median" in row else ""
        print(json.dumps(row) if options.json else f"{name:9} {row['samples_per_second']:8.0f} samples/s  {row['of_sum']:6.1%} of the sum of the workers' own speeds{late}", flush=True)


if __name__ == "__main__":
    main()

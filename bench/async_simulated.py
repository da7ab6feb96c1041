#!/usr/bin/env python3
"""Staleness and throughput of real workers that do not wait, beside what the virtual clock says of the same workers.

    bench/async_simulated.py [--workers 2,3,4] [--factor 4] [--base 8] [--mode async] [--model fc:hidden=256] [--data SPEC] [--global-batch 256] [--steps 200] [--rounds 3] [--json]

For each number of workers, all alike and with the last --factor times slower: a real training (every worker slowed down by --base, so that cores are not what they wait for), then one with --virtual whose computing time is what
the real workers needed for a work item, and whose link is as long as their messages took. Neither saw the other's staleness. `share` is the slow (or last) worker's part of all pushes; `apart` the part of the pushes that would have
to have another staleness for the two to have the same (total variation; bins of the record). Medians of the rounds.
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


def train(options, folder, *more):
    run_ok(["train", "--model", options.model, "--data", options.data, "--global-batch", options.global_batch, "--optimizer", "sgd", "--lr", 0.05, "--steps", options.steps, "--eval-every", options.steps, "--checkpoint-every", options.steps,
            "--threads", 1, "--layout", f"sync={options.mode}", "--quiet", "--log-every", 1, "--run", folder, *more], timeout=600)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"], [line for line in lines if line["event"] == "async"][-1]


def described(record, samples_per_second):
    pushes = sum(record["pushes_of_staleness"])
    return {"samples_per_second": samples_per_second, "median": record["staleness_median"], "tail": record["staleness_tail"], "mean_late_steps": record["mean_late_steps"],
            "share": record["workers"][-1]["pushes"] / sum(worker["pushes"] for worker in record["workers"]),
            "of_staleness": {start: number / pushes for start, number in zip(record["staleness_from"], record["pushes_of_staleness"])}}


def one_round(options, workers, factor):
    slow = ",".join(f"slow:{rank}:{options.base * (factor if rank == workers - 1 else 1)}" for rank in range(workers))
    with Folder() as folder:
        steps, record = train(options, folder / "real", "--workers", workers, "--inject", slow)
        real = described(record, len(steps) * options.global_batch / sum(line["step_seconds"] for line in steps))
        fast = record["workers"][:-1] if factor > 1 else record["workers"]
        compute = statistics.median(worker["computing_seconds"] / worker["pushes"] for worker in fast)
        moving = sum(worker["moving_seconds"] for worker in record["workers"]) / sum(worker["pushes"] for worker in record["workers"])
        slowest = record["workers"][-1]["computing_seconds"] / record["workers"][-1]["pushes"] / compute
        clock = f"workers={workers},compute={compute:.6f},link={1e6 * moving / 2:.0f}us:100Gbit" + (f",slow={workers - 1}:{slowest:.4f}" if factor > 1 else "")
        _, record = train(options, folder / "virtual", "--virtual", clock)
        virtual = described(record, record["samples_per_virtual_second"])
    starts = {*real["of_staleness"], *virtual["of_staleness"]}
    apart = sum(abs(real["of_staleness"].get(start, 0) - virtual["of_staleness"].get(start, 0)) for start in starts) / 2
    return {"speed": virtual["samples_per_second"] / real["samples_per_second"], "apart": apart,
            **{f"{key}_{name}": its[key] for name, its in (("measured", real), ("simulated", virtual)) for key in ("median", "tail", "mean_late_steps", "share")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("workers", "2,3,4"), ("mode", "async"), ("model", "fc:hidden=256"), ("data", "synthetic:1x28x28,classes=10,samples=8192")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("factor", 4), ("base", 8), ("global-batch", 256), ("steps", 200), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for workers in map(int, options.workers.split(",")):
        for factor in (1, options.factor):
            rounds = [one_round(options, workers, factor) for _ in range(options.rounds)]
            row = {"workers": workers, "last_slower": factor, **{key: statistics.median(its[key] for its in rounds) for key in rounds[0]}}
            print(json.dumps(row) if options.json else
                  f"{workers} workers, the last {factor} x: simulated {row['speed']:.2f} of the measured samples/s; staleness, measured and simulated: median {row['median_measured']:.0f} {row['median_simulated']:.0f}, "
                  f"99 % {row['tail_measured']:.0f} {row['tail_simulated']:.0f}, mean {row['mean_late_steps_measured']:.2f} {row['mean_late_steps_simulated']:.2f} steps; {row['apart']:.0%} apart; "
                  f"the last one's pushes {row['share_measured']:.0%} {row['share_simulated']:.0%}", flush=True)


if __name__ == "__main__":
    main()

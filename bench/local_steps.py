#!/usr/bin/env python3
"""Workers that exchange seldom, or wait for nobody, beside workers that agree in every step: throughput, bytes on the link, time to a goal, and what the training reaches after as many samples.

    bench/local_steps.py [--modes step,local:8,local:8:4,local:8:quorum=2,diloco:8,async] [--cells even,slow,100,1000] [--model cnn:width=0.25] [--data fashion-mnist] [--goal val_error:0.25] [--hosts 2] [--slow 1] [--steps 320] [--eval-every 32] [--seeds 3] [--json]

Cells: `even` is two workers on this machine; `slow`: the second takes four times as long; a number: two hosts, or `--hosts`, with a rank each (network name spaces of this machine; root needed), each with a link of so many Mbit/s, limited by `tc`; `--slow F` has each rank take F times as long for its computing, asleep, so that many hosts can be one machine. All modes of a seed
run one after the other, and ratios to the first mode are of the same seed. Throughput is of all steps but those up to the first line of metrics (the first exchange); seconds to the goal are those of the steps up to the first evaluation
that reaches it, without evaluations; megabytes a step are what host 1 sent, the meeting included. Medians of the seeds.
"""
import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
import test_hosts
from support import COHORT, Folder, run_ok
from test_hosts import Hosts, lines_of

# Ranks of two name spaces are processes of one machine all the same, and a server would find its workers' memory through /proc: each rank gets a /proc of its own, so that what it sends goes over the link.
APART = f'#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc {COHORT} "$@"\n'


def seconds_to_goal(lines, goal):
    """A line of metrics may stand for several steps, of which it has the mean."""
    metric, bound = goal.split(":")
    before, seconds = 0, 0
    for line in lines:
        if line["event"] == "step":
            seconds += (line["step"] - before) * line["step_seconds"]
            before = line["step"]
        if line["event"] == "eval" and line[metric] < float(bound):
            return seconds
    return None


def train(cell, options, mode, seed, folder):
    run_folder = folder / f"{mode.replace(':', '-')}-{seed}"
    arguments = ["--model", options.model, "--data", options.data, "--val-samples", 2000, "--global-batch", options.global_batch, "--optimizer", options.optimizer, "--lr", options.lr, "--steps", options.steps,
                 "--eval-every", options.eval_every, "--checkpoint-every", "end", "--seed", seed, "--threads", 1, "--layout", f"dp={options.hosts if cell.isdigit() else 2},sync={mode}", "--quiet", "--json", "--run", run_folder]
    if cell == "slow":
        arguments += ["--inject", "slow:1:4"]
    if cell.isdigit() and options.slow > 1:
        arguments += ["--inject", ",".join(f"slow:{rank}:{options.slow}" for rank in range(options.hosts))]
    sent = None
    if cell.isdigit():
        program = folder / "apart"
        program.write_text(APART)
        program.chmod(0o755)
        test_hosts.COHORT = str(program)
        with Hosts(options.hosts, megabits=int(cell)) as hosts:
            lines = lines_of(hosts.train(list(range(options.hosts)), arguments))
            sent = hosts.sent_bytes(1)
    else:
        lines = run_ok(["train", *arguments], timeout=900)
    steps = [line for line in lines if line["event"] == "step"]
    counted = [(line["step"] - before["step"], line["step_seconds"]) for before, line in zip(steps, steps[1:])]
    done = next(line for line in lines if line["event"] == "done")
    return {"samples_per_second": options.global_batch * sum(number for number, _ in counted) / sum(number * seconds for number, seconds in counted), "seconds_to_goal": seconds_to_goal(lines, options.goal),
            "megabytes_per_step": sent and sent / 1e6 / options.steps, "val_loss": done["val_loss"], "val_error": done["val_error"]}


def median(values):
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if len(known) > len(values) // 2 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("modes", "step,local:8,local:8:4,local:8:quorum=2,diloco:8,async"), ("cells", "even,slow,100,1000"), ("model", "cnn:width=0.25"), ("data", "fashion-mnist"), ("optimizer", "momentum"), ("lr", "0.03"), ("goal", "val_error:0.25")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("hosts", 2), ("slow", 1), ("global-batch", 128), ("steps", 320), ("eval-every", 32), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
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
            ratios = [run["samples_per_second"] / base["samples_per_second"] for run, base in zip(found[mode], found[modes[0]])]
            row = {"cell": cell, "sync": mode, "times_the_first": median(ratios), "lowest": min(ratios), "highest": max(ratios), **{key: median([run[key] for run in found[mode]]) for key in found[mode][0]}}
            goal = f"{row['seconds_to_goal']:7.2f} s to the goal" if row["seconds_to_goal"] is not None else "   never at the goal"
            sent = f"  {row['megabytes_per_step']:.3f} MB a step" if row["megabytes_per_step"] is not None else ""
            text = "{cell:>6} {sync:18} {samples_per_second:9.0f} samples/s  {times_the_first:5.2f} times ({lowest:.2f} to {highest:.2f})"
            print(json.dumps(row) if options.json else text.format(**row) + f"  {goal}{sent}  validation loss {row['val_loss']:.4f}, error {row['val_error']:.4f}", flush=True)


if __name__ == "__main__":
    main()

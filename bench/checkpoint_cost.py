#!/usr/bin/env python3
"""What a checkpoint at every evaluation costs a training, in time.

    bench/checkpoint_cost.py [--model cnn] [--data fashion-mnist] [--workers 1] [--steps 200] [--eval-every 20] [--rounds 5] [--json]

Two trainings alternate: one saves at every evaluation (the default), one at its end alone. Both evaluate alike, and the first of each round changes. The line of a model has the median of the ratios of their
seconds over the rounds, and the median seconds that the training itself waited for one checkpoint (event `checkpoint`). Needs a built tree.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

COHORT = os.environ.get("COHORT_BIN", str(pathlib.Path(__file__).resolve().parents[1] / "build/release/bin/cohort"))


def train(options, every, folder):
    command = [COHORT, "train", "--model", options.model, "--data", options.data, "--workers", options.workers, "--steps", options.steps, "--eval-every", options.eval_every, "--checkpoint-every", every,
               "--test-samples", 0, "--val-samples", 1000, "--run", f"{folder}/{every}", "--json"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    records = [json.loads(line) for line in open(f"{folder}/{every}/metrics.jsonl", encoding="utf-8")]
    return lines[-1]["seconds"], [line["seconds"] for line in records if line["event"] == "checkpoint"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ratios, waits, seconds = [], [], {"0": [], "end": []}
    for turn in range(options.rounds):
        of_turn = {}
        for every in ["0", "end"][:: 1 if turn % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                of_turn[every], saved = train(options, every, folder)
            seconds[every].append(of_turn[every])
            if every == "0":
                waits += saved
        ratios.append(of_turn["0"] / of_turn["end"])
    line = {"model": options.model, "workers": options.workers, "checkpoints": options.steps // options.eval_every, "seconds": statistics.median(seconds["0"]), "seconds_without": statistics.median(seconds["end"]),
            "ratio": statistics.median(ratios), "least_ratio": min(ratios), "most_ratio": max(ratios), "checkpoint_seconds": statistics.median(waits)}
    if options.json:
        print(json.dumps(line))
    else:
        print(f"{line['model']}, {line['workers']} workers: {line['checkpoints']} checkpoints in {line['seconds']:.2f} s, one in {line['seconds_without']:.2f} s; ratio {line['ratio']:.3f} "
              f"({line['least_ratio']:.3f} to {line['most_ratio']:.3f}); a checkpoint is waited for {1000 * line['checkpoint_seconds']:.1f} ms")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Seconds of a pipeline's step with split=auto beside split=even (equal numbers of layers), alternating.

    bench/split.py [--program build/release/bin/cohort] [--models resnet8,vgg11:width=32] [--workers 2] [--microbatches 4] [--rounds 4] [--steps 8]

Prints a JSON line for each model: medians over the rounds of the measured and the predicted step.
"""
import argparse
import json
import statistics
import subprocess
import tempfile


def step(options, model, split):
    with tempfile.TemporaryDirectory() as folder:
        command = [options.program, "train", "--model", model, "--data", "synthetic:3x32x32,classes=10,samples=600", "--global-batch", "64", "--lr", "0.001", "--threads", "1",
                   "--steps", str(options.steps), "--layout", f"pp={options.workers},microbatches={options.microbatches},split={split}", "--quiet", "--json", "--run", folder + "/run"]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        return done["measured_step_seconds"], done["predicted_step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/cohort")
    parser.add_argument("--models", default="resnet8,vgg11:width=32")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    for model in options.models.split(","):
        times = {"even": [], "auto": []}
        for _ in range(options.rounds):
            for split, rows in times.items():
                rows.append(step(options, model, split))
        line = {"model": model, "workers": options.workers}
        for split, rows in times.items():
            line[split + "_step_seconds"] = round(statistics.median(row[0] for row in rows), 5)
            line[split + "_predicted_seconds"] = round(statistics.median(row[1] for row in rows), 5)
        line["auto_of_even"] = round(line["auto_step_seconds"] / line["even_step_seconds"], 3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

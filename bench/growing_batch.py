#!/usr/bin/env python3
"""A batch that grows against a learning rate that falls (Smith et al. 2018): validation error and updates at the same number of samples, over seeds, paired.

    bench/growing_batch.py [--model MODEL] [--data DATA] [--image-size N] [--batch 32] [--lr 0.3] [--optimizer sgd] [--epochs 2] [--stages 5] [--factor 2] [--seeds 5] [--keep DIR]

Every arm sees --epochs times the training samples, the first --batch at a time:
    constant        rate and batch stay
    falling rate    the rate falls linearly to 1 / FACTOR^(STAGES - 1) of itself
    growing batch   the rate stays, the batch grows by FACTOR STAGES - 1 times (`--batch-schedule`): where the falling rate would be nearer, as a ratio, to the next
                    stage's 1 / FACTOR^n than to this one's, so that rate over batch is about the same at every sample
    large batch     the last batch from the start, at the same rate
Intervals are 95 % of Student's t over the seeds, of the mean and of the mean of paired differences to the falling rate.
"""
import argparse
import json

from compressed_rows import Folder, folder_of, run_ok
from distil import interval


def trained(folder, name, options, *arguments):
    run_folder = folder / name
    if not (run_folder / "metrics.jsonl").exists():
        size = ["--image-size", options.image_size] if options.image_size else []
        run_ok(["train", "--model", options.model, "--data", options.data, *size, "--optimizer", options.optimizer, "--lr", options.lr, "--epochs", options.epochs, "--test-samples", 0, "--checkpoint-every", "end", "--threads", 1,
                *arguments, "--run", run_folder, "--quiet"], timeout=3600)
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if line["event"] == "eval"]
    return {"error": 100 * evaluated[-1]["val_error"], "steps": max(line["step"] for line in lines if line["event"] == "step"), "samples": lines[0]["train_samples"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fc:hidden=32,layers=2")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--image-size", type=int, default=14)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--stages", type=int, default=5)
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep")
    options = parser.parse_args()
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        rows = {}
        for seed in range(1, options.seeds + 1):
            base = ["--seed", seed]
            constant = trained(folder, f"constant-{seed}", options, *base, "--global-batch", options.batch)
            last = options.factor**(options.stages - 1)
            starts, step, before = [], 0.0, 0.0
            for stage in range(1, options.stages):
                share = (1 - options.factor**(0.5 - stage)) / (1 - 1 / last)  # Of the samples, where the falling rate passes between the two.
                step += (share - before) * options.epochs * constant["samples"] / (options.batch * options.factor**(stage - 1))
                before = share
                starts.append(f"{round(step)}:{options.factor**stage}")
            arms = {"constant": constant,
                    "falling rate": trained(folder, f"falling-{seed}", options, *base, "--global-batch", options.batch, "--schedule-lr", "linear", "--lr-end-factor", 1 / last),
                    "growing batch": trained(folder, f"growing-{seed}", options, *base, "--global-batch", options.batch, "--batch-schedule", ",".join(starts)),
                    "large batch": trained(folder, f"large-{seed}", options, *base, "--global-batch", options.batch * last)}
            for name, arm in arms.items():
                rows.setdefault(name, []).append(arm)
    print(f"--batch-schedule {','.join(starts)}")
    print("| arm | updates | validation error, % | less the falling rate's |")
    print("|---|---|---|---|")
    for name, arms in rows.items():
        mean, half = interval([arm["error"] for arm in arms])
        difference, half_difference = interval([arm["error"] - falling["error"] for arm, falling in zip(arms, rows["falling rate"])])
        print(f"| {name} | {arms[0]['steps']:,} | {mean:.2f} +- {half:.2f} | {difference:+.2f} +- {half_difference:.2f} |")


if __name__ == "__main__":
    main()

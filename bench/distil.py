#!/usr/bin/env python3
"""A student with and without its teacher: test error over seeds, paired.

    bench/distil.py [--teacher cnn] [--student cnn:width=0.3] [--data fashion-mnist] [--teacher-steps 1500] [--steps 300] [--seeds 5] [--temperature 1] [--alpha 0.5] [--hint conv2:conv2] [--hint-weight 1] [--keep DIR] [--json]

Trains the teacher once; then for each seed the student from new weights, without a teacher and with it, on the same batches in the same order. The error is that of the test set, which neither training nor
any choice has seen. Intervals are 95 % of Student's t over the seeds: of each mean, and of the mean of the paired differences. --keep DIR keeps runs, and takes those that are there.
"""
import argparse
import json
import math
import statistics
import sys

from compressed_rows import Folder, folder_of, run_ok

TRAINING = ["--optimizer", "momentum", "--lr", "0.02", "--global-batch", "64", "--schedule-lr", "linear", "--lr-end-factor", "0.05"]
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def trained(folder, name, options, *arguments):
    """The last line of a run, and how many parameters its model has."""
    run_folder = folder / name
    if not (run_folder / "metrics.jsonl").exists():
        run_ok(["train", "--data", options.data, *TRAINING, *map(str, arguments), "--run", run_folder, "--quiet", "--json"], timeout=3600)
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["event"] == "done"), next(line for line in lines if line["event"] == "start")["parameters"]


def interval(values):
    """Mean and half of its interval."""
    if len(values) < 2:
        return statistics.mean(values), math.nan
    return statistics.mean(values), T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="cnn")
    parser.add_argument("--student", default="cnn:width=0.3")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--teacher-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=1)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--hint", help="layers of student and teacher that are compared too")
    parser.add_argument("--hint-weight", type=float, default=1)
    parser.add_argument("--keep")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        teacher, teacher_parameters = trained(folder, "teacher", options, "--model", options.teacher, "--steps", options.teacher_steps, "--eval-every", options.teacher_steps)
        hint = ["--hint", options.hint, "--hint-weight", options.hint_weight] if options.hint else []
        rows = []
        for seed in range(1, options.seeds + 1):
            base = ["--model", options.student, "--steps", options.steps, "--eval-every", options.steps, "--seed", seed]
            alone, parameters = trained(folder, f"alone-{seed}", options, *base)
            taught, _ = trained(folder, f"taught-{seed}", options, *base, "--teacher", folder / "teacher", "--temperature", options.temperature, "--alpha", options.alpha, *hint)
            rows.append({"seed": seed, "alone": alone["test_error"], "taught": taught["test_error"], "alone_seconds": alone["seconds"], "taught_seconds": taught["seconds"]})
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
            else:
                print(f"seed {seed}: {100 * rows[-1]['alone']:.2f} % alone, {100 * rows[-1]['taught']:.2f} % taught", file=sys.stderr, flush=True)
        means = {name: interval([row[name] for row in rows]) for name in ("alone", "taught")}
        means["difference"] = interval([row["taught"] - row["alone"] for row in rows])
        if options.json:
            print(json.dumps({"teacher_error": teacher["test_error"], "teacher_parameters": teacher_parameters, "parameters": parameters, **{name: list(value) for name, value in means.items()}}))
            return
        print(f"| model | parameters | test error |\n|---|---|---|\n| teacher {options.teacher}, {options.teacher_steps} steps | {teacher_parameters:,} | {100 * teacher['test_error']:.2f} % |")
        for name, text in (("alone", "student alone"), ("taught", "student with its teacher"), ("difference", "paired difference")):
            size = f"{parameters:,}" if name != "difference" else ""
            print(f"| {text} | {size} | {100 * means[name][0]:{'+' if name == 'difference' else ''}.2f} +- {100 * means[name][1]:.2f} {'points' if name == 'difference' else '%'} |")


if __name__ == "__main__":
    main()

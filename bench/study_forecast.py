#!/usr/bin/env python3
"""Time to a study's goal: what steps_curve.csv x step_times.csv predict, beside what `cohort train` then takes.

    bench/study_forecast.py STUDY_DIR [--program build/release/bin/cohort] [--workers 1,2] [--batch-sizes 64,512] [--seeds 1,2,3]

For each number of workers, batch size and seed it trains with the best trial's hyperparameters (`cohort train --study DIR --global-batch B`)
until an evaluation reaches the goal, one compute thread a worker, as step times were measured. Default: the best trial's seed, and for each number of
workers the two batch sizes that are soonest there. Prints a JSON line for each run: predicted steps, step and seconds; measured steps
(evaluations are a twentieth of the predicted steps apart), median step, seconds of all steps together, and apart from them other_seconds:
evaluations, metrics, checkpoint. Another seed is another training: the study's steps are those of its luckiest trial.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import tempfile


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Study:
    def __init__(self, folder):
        self.folder = folder
        curve = [row for row in rows(folder / "steps_curve.csv") if row["steps"]]
        self.goal = curve[0]["goal"] if curve else None
        self.steps = {int(row["batch_size"]): int(row["steps"]) for row in curve}
        self.step_seconds = {(int(row["batch_size"]), int(row["num_workers"])): float(row["step_seconds"]) for row in rows(folder / "step_times.csv")}

    def seconds(self, batch, workers):
        return self.steps[batch] * self.step_seconds[batch, workers]

    def soonest(self, workers, count):
        known = [batch for batch in self.steps if (batch, workers) in self.step_seconds]
        return sorted(sorted(known, key=lambda batch: self.seconds(batch, workers))[:count])


def train(options, study, batch, workers, seed):
    with tempfile.TemporaryDirectory() as folder:
        command = [options.program, "train", "--study", study.folder, "--global-batch", batch, "--workers", workers, "--threads", 1, "--quiet", "--json", "--run", folder + "/run"] + (["--seed", seed] if seed else [])
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def reached(goal, lines):
    metric, value = goal.split("<")
    evaluations = [line for line in lines if line["event"] == "eval"]
    return bool(evaluations) and evaluations[-1][metric] < float(value)


def compare(options, study, batch, workers, seed):
    lines = train(options, study, batch, workers, seed)
    step_seconds = sorted(line["step_seconds"] for line in lines if line["event"] == "step")
    measured = sum(step_seconds)
    predicted = study.seconds(batch, workers)
    return {
        "workers": workers, "batch_size": batch, "seed": seed, "goal": study.goal, "reached": reached(study.goal, lines),
        "predicted_steps": study.steps[batch], "predicted_step_seconds": study.step_seconds[batch, workers], "predicted_seconds": round(predicted, 4),
        "measured_steps": len(step_seconds), "measured_step_seconds": step_seconds[len(step_seconds) // 2], "measured_seconds": round(measured, 4),
        "other_seconds": round(lines[-1]["seconds"] - measured, 4), "measured_of_predicted": round(measured / predicted, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/bin/cohort")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--batch-sizes", default="")
    parser.add_argument("--seeds", default="")
    options = parser.parse_args()
    study = Study(options.study)
    if not study.goal or "<" not in study.goal:
        raise SystemExit(f"{options.study}: no batch size reached a goal that `train` measures ({study.goal})")
    for seed in options.seeds.split(","):  # "": the best trial's.
        for workers in map(int, options.workers.split(",")):
            for batch in map(int, options.batch_sizes.split(",")) if options.batch_sizes else study.soonest(workers, 2):
                if batch not in study.steps or (batch, workers) not in study.step_seconds:
                    raise SystemExit(f"{options.study}: no steps to the goal or no step time for batch size {batch} on {workers} workers; run `cohort study report {options.study}`")
                print(json.dumps(compare(options, study, batch, workers, seed)), flush=True)


if __name__ == "__main__":
    main()

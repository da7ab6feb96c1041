#!/usr/bin/env python3
"""Time to a goal, forecast and measured, and what the plan saves against plain data parallelism.

    bench/time_to_goal.py [--program build/release/bin/cohort] [--workers 1,2,4] [--models fc,cnn] [--keep DIR]

For each model: a small batch-size study on Fashion-MNIST (learning rate alone, 6 trials a batch size), then for each number of workers
`cohort plan --study` and a training of what it chose, until an evaluation reaches the goal; and plain data parallelism over all workers at
its own best batch, as the plan names it. Prints a JSON line each: forecast and measured steps, step and seconds (all steps together;
evaluations and the checkpoint are in other_seconds). More workers than cores are marked as oversubscribed. --keep DIR leaves the studies
there, and takes those that are there instead of running them again.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

MODELS = {  # Model, goal, budgets in steps by batch size, range of the learning rate.
    "fc": ("fc:hidden=512,layers=3", "val_error<0.17", {16: 1200, 64: 500, 256: 250, 1024: 150}, (0.02, 0.5)),
    "cnn": ("cnn:width=0.25", "val_error<0.28", {16: 600, 64: 250, 256: 120}, (0.03, 0.5)),
}
SPEC = """[workload]
name = "{name}"
data = "fashion-mnist"
model = "{model}"
optimizer = "sgd"
dataset_name = "fashion_mnist"
model_name = "{name}"
val_samples = 1000

[study]
goals = ["{goal}"]
batch_sizes = {sizes}
trials = 6
steps = {steps}
evaluation_ratio = 1.1

[search]
learning_rate = {{ scale = "log", min = {low}, max = {high} }}

[censoring]
margin = 1.5
"""


def run(options, *arguments):
    command = [options.program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def make_study(options, folder, name):
    model, goal, budgets, (low, high) = MODELS[name]
    study = folder / f"study-{name}"
    if not (study / "study.db").exists():
        spec = folder / f"{name}.toml"
        spec.write_text(SPEC.format(name=name, model=model, goal=goal, sizes=list(budgets), steps=list(budgets.values()), low=low, high=high))
        run(options, "study", "run", spec, "--out", study, "--workers", os.cpu_count(), "--quiet", "--json")
        run(options, "study", "report", study, "--no-times", "--json")
    return study


def train(options, folder, study, plan, layout):
    """One training to the goal; what it took beside what was forecast."""
    with tempfile.TemporaryDirectory(dir=folder) as run_folder:
        lines = run(options, "train", "--study", study, "--global-batch", plan["global_batch"], "--workers", plan["num_workers"], "--layout", layout,
                    "--quiet", "--json", "--run", run_folder + "/run")
    steps = sorted(line["step_seconds"] for line in lines if line["event"] == "step")
    evaluations = [line["val_error"] for line in lines if line["event"] == "eval"]
    return {"layout": layout if "=" in str(layout) else plan_text(plan["layout"]), "used_workers": plan["num_workers"], "global_batch": plan["global_batch"],
            "forecast_steps": plan["steps"], "forecast_step_seconds": plan["predicted_step_seconds"], "forecast_seconds": round(plan["seconds"], 3),
            "forecast_interval": plan["interval"], "worker_hours": plan["worker_hours"],
            "measured_steps": len(steps), "measured_step_seconds": steps[len(steps) // 2], "measured_seconds": round(sum(steps), 3),
            "other_seconds": round(lines[-1]["seconds"] - sum(steps), 3), "val_error": evaluations[-1] if evaluations else None}


def plan_text(layout):
    return ",".join(f"{key}={layout[key]}" for key in ("dp", "pp", "tp", "zero") if layout[key] not in (1, 0) or key == "dp")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/cohort")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--models", default="fc,cnn")
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.models.split(","):
            study = make_study(options, folder, name)
            for workers in map(int, options.workers.split(",")):
                file = folder / f"plan-{name}-{workers}.json"
                goal = run(options, "plan", "--study", study, "--workers", workers, "--no-what-if", "--out", file, "--json")[0]["goal"]
                line = {"model": name, "goal": goal["goal"], "workers": workers, "oversubscribed": workers > os.cpu_count(), "flat_from": goal["flat_from"],
                        "worth_having": goal["num_worth_having"], **train(options, folder, study, goal, file)}
                plain = goal["plain_dp"]
                if plain:
                    line["plain_dp"] = train(options, folder, study, plain, f"dp={workers}")
                    line["forecast_saved"] = round(goal["saved_against_plain_dp"], 3)
                    line["measured_saved"] = round(1 - line["measured_seconds"] / line["plain_dp"]["measured_seconds"], 3)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

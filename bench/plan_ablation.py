#!/usr/bin/env python3
"""What each choice of the planner is worth: the best plan with all of them against the best plan without one.

    bench/plan_ablation.py [--seconds X] [--markdown]

For each setting (a model by its shapes, a cluster of clusters/, a batch) a row: the step of the best plan, and how much longer it is where one
thing may not be chosen. "none" where nothing then fits. Times are forecasts, not measurements.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("COHORT_BIN", ROOT / "build/release/bin/cohort")
WITHOUT = {  # What is left out: keys of --layout that are held; the better of several.
    "schedules but 1F1B": ["schedule=1f1b", "pp=1"],
    "recompute": ["recompute=none"],
    "ZeRO": ["zero=0"],
    "tensor degrees": ["tp=1"],
    "pipelines": ["pp=1"],
    "replicas": ["dp=1"],
    "half precision": ["precision=fp32"],
}
SETTINGS = [  # Name, model, cluster, devices, memory of each in GB, batch.
    ("GPT 1.3B, 64 A100", "transformer:layers=24,width=2048,heads=16,vocabulary=50304,context=1024", "a100.toml", 64, 80, 512),
    ("GPT 1.3B, 64 A100 of 16 GB", "transformer:layers=24,width=2048,heads=16,vocabulary=50304,context=1024", "a100.toml", 64, 16, 512),
    ("GPT 13B, 64 A100", "transformer:layers=40,width=5120,heads=40,vocabulary=50304,context=2048", "a100.toml", 64, 80, 512),
    ("GPT 30B, 64 H100 of 40 GB", "transformer:layers=48,width=7168,heads=56,vocabulary=50304,context=2048", "h100.toml", 64, 40, 256),
    ("GPT 13B, 32 CPU ranks at 10 Gbit/s", "transformer:layers=40,width=5120,heads=40,vocabulary=50304,context=512", "ethernet-10g.toml", 32, 64, 128),
    ("ResNet-50, 32 CPU ranks at 10 Gbit/s", "resnet50:stem=imagenet", "ethernet-10g.toml", 32, 64, 256),
]


def plan(model, cluster, workers, batch, layout, seconds, memory):
    more = ["--data", "synthetic:3x224x224,classes=1000"] if model.startswith("resnet") else []
    arguments = ["plan", "--model", model, "--cluster", cluster, "--workers", workers, "--global-batch", batch, "--optimizer", "adamw", "--memory-limit", int(memory * 1e9),
                 "--search-seconds", seconds, "--no-what-if", "--json", *more, *(["--layout", layout] if layout else [])]
    run = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode == 3:
        return None
    if run.returncode != 0:
        raise SystemExit(run.stderr.strip())
    return json.loads(run.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each search, at most")
    options = parser.parse_args()
    print("| | best plan | step | gap | without " + " | ".join(WITHOUT) + " |")
    print("|" + "---|" * (4 + len(WITHOUT)))
    for name, model, cluster, workers, memory, batch in SETTINGS:
        best = plan(model, ROOT / "clusters" / cluster, workers, batch, "", options.seconds, memory)
        cells = []
        for held in WITHOUT.values():
            others = [best and plan(model, ROOT / "clusters" / cluster, workers, batch, layout, options.seconds, memory) for layout in held]
            other = min((one for one in others if one), key=lambda one: one["objective_seconds"], default=None)
            cells.append("none" if other is None else f"+{100 * (max(other['objective_seconds'], best['objective_seconds']) / best['objective_seconds'] - 1):.1f} %")
        if best is None:
            print(f"| {name} | nothing fits |")
            continue
        layout = best["layout"]
        said = " ".join(f"{key}={layout[key]}" for key in ("dp", "tp", "pp", "zero", "precision") if str(layout.get(key)) not in ("0", "1"))
        if layout["pp"] > 1:
            said += f" {layout['schedule']} m={layout['microbatches']}"
        said += "" if layout["recompute"] == "none" else " recompute"
        gap = best["objective_seconds"] / best["lower_bound_seconds"] - 1
        print(f"| {name} | {said} | {best['objective_seconds']:.4g} s | {100 * gap:.1f} % | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

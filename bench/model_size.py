#!/usr/bin/env python3
"""What splitting a model over two workers brings, against the number of its parameters, and how much of a step is exchange: forecast and measured.

    bench/model_size.py [--families fc,transformer] [--steps 20] [--rounds 2] [--json]

Each family is grown over a factor of 100 and more in parameters. The gain of a layout is the step of one worker on one core over that of two workers on one core each. The share of exchange is forecast for each
layout; measured it is known for dp=2 and pp=2 (what computing does not hide) and not for tp=2, whose exchanges are inside the layers. The same number of samples and the same batch at every size.
"""
import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run_ok

FAMILIES = {
    "fc": [["--model", f"fc:hidden={hidden},layers=3", "--data", "synthetic:1x28x28,classes=10,samples=2000", "--global-batch", "64"] for hidden in (64, 256, 1024, 2048)],
    "transformer": [["--model", f"transformer:width={width},layers=4,heads=4", "--data", "synthetic:text,samples=400", "--context", "64", "--global-batch", "8"] for width in (32, 96, 256, 384)],
}
LAYOUTS = [("single", 1), ("dp=2", 2), ("tp=2", 2), ("pp=2,schedule=1f1b,microbatches=4", 2)]


def forecast(profile, batch, layout, workers):
    """The plan of this layout from the ranks that were measured with one core each."""
    plan = run_ok(["plan", "--profile", profile, "--cluster", profile.with_name("cluster.json"), "--global-batch", batch, "--layout", layout, "--no-what-if", "--json"])[0]
    worker = max(plan["workers"], key=lambda one: one["forward_seconds"] + one["backward_seconds"])
    shown = worker["exposed_exchange_seconds"] + worker["tensor_exchange_seconds"] + worker["idle_seconds"]
    return plan["predicted_step_seconds"], shown / plan["predicted_step_seconds"]


def measure(model, layout, workers, steps, folder):
    place = folder / f"{layout.split(',')[0]}-{len(list(folder.iterdir()))}"
    lines = run_ok(["train", *model, "--lr", "0.001", "--workers", workers, "--threads", 1, "--layout", layout, "--steps", steps, "--quiet", "--json", "--run", place], timeout=600)
    done = next(line for line in lines if line["event"] == "done")
    start = next(json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines() if '"event":"start"' in line)
    ranks = next(json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines() if '"event":"ranks"' in line)["ranks"]
    exchange = max(rank["exchange_seconds"] for rank in ranks)
    total = max(sum(rank[f"{part}_seconds"] for part in ("data", "compute", "exchange", "optimizer")) for rank in ranks)
    return done["measured_step_seconds"], exchange / total, start["parameters"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for family in options.families.split(","):
        for model in FAMILIES[family]:
            with Folder() as folder:
                profile = folder / "profile.json"
                run_ok(["plan", *model, "--workers", 2, "--precision", "fp32", "--profile", profile, "--no-what-if"], timeout=600)
                profile.with_name("cluster.json").write_text(json.dumps(json.loads(profile.read_text())["measured_on"][-1]))
                batch = model[model.index("--global-batch") + 1]
                forecasts = {layout: forecast(profile, batch, layout, workers) for layout, workers in LAYOUTS}
                seconds, shares, parameters = {layout: [] for layout, _ in LAYOUTS}, {}, 0
                for _ in range(options.rounds):
                    for layout, workers in LAYOUTS:
                        step, share, parameters = measure(model, layout, workers, options.steps, folder)
                        seconds[layout].append(step)
                        shares[layout] = min(share, shares.get(layout, 1))
                for layout, _ in LAYOUTS[1:]:
                    row = {"family": family, "parameters": parameters, "layout": layout.split(",")[0], "predicted_gain": forecasts["single"][0] / forecasts[layout][0], "measured_gain": min(seconds["single"]) / min(seconds[layout]),
                           "predicted_exchange_share": forecasts[layout][1], "measured_exchange_share": None if layout.startswith("tp") else shares[layout]}
                    if options.json:
                        print(json.dumps(row), flush=True)
                        continue
                    measured = "     -" if row["measured_exchange_share"] is None else f"{100 * row['measured_exchange_share']:4.0f} %"
                    print(f"{family:12} {parameters:10,} parameters  {row['layout']:5} gain: forecast {row['predicted_gain']:5.2f}, measured {row['measured_gain']:5.2f}   exchange and waiting: forecast {100 * row['predicted_exchange_share']:4.0f} %, measured {measured}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Whether the interval of a forecast narrows with the runs before it, and still holds: trainings one after the other, each with the interval that the errors so far give.

    bench/calibration.py [--models fc,cnn,...] [--rounds 8] [--steps 30] [--json]

In each round every model is measured anew (`cohort plan --profile`) and trained in each layout with `--profile`; all share one calibration file, empty at first, in a temporary folder. For each round:
the interval's width (upper end / lower end, geometric mean), how many measured steps lay inside, and how many inside of 0.8 to 1.25 times the forecast, the
default before the repeats of the profile widen it.
"""
import argparse
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from forecast_layouts import MODELS, Folder, run, run_ok

LAYOUTS = [("single", 1), ("dp=2", 2), ("dp=2,zero=3", 2), ("pp=2,schedule=1f1b,microbatches=4", 2)]
DEFAULT = (0.8, 1.25)


def one_round(names, steps, number, folder, calibration):
    rows = []
    for name in names:
        profile = folder / f"profile-{name}-{number}.json"
        run_ok(["plan", *MODELS[name], "--workers", 2, "--precision", "fp32", "--profile", profile, "--no-what-if", "--calibration", "none"], timeout=600)
        for layout, workers in LAYOUTS:
            code, out, err = run(["train", *MODELS[name], "--lr", "0.001", "--workers", workers, "--layout", layout, "--steps", steps, "--profile", profile, "--calibration", calibration,
                                  "--quiet", "--json", "--run", folder / f"run-{name}-{layout}-{number}"], timeout=600)
            if code != 0:
                raise SystemExit(f"{name} {layout}: {err.strip().splitlines()[-1]}")
            lines = {line["event"]: line for line in map(json.loads, out.splitlines())}
            forecast, measured = lines["forecast"], lines["done"]["measured_step_seconds"]
            low, high = forecast["interval"]
            rows.append({"event": "run", "round": number, "model": name, "layout": layout, "predicted_step_seconds": forecast["predicted_step_seconds"], "measured_step_seconds": measured,
                         "interval": [low, high], "interval_from": forecast["interval_from"], "inside": low <= measured <= high,
                         "inside_default": DEFAULT[0] <= measured / forecast["predicted_step_seconds"] <= DEFAULT[1]})
    return rows


def summary(rows):
    width = math.exp(sum(math.log(row["interval"][1] / row["interval"][0]) for row in rows) / len(rows))
    return {"runs": len(rows), "width": width, "inside": sum(row["inside"] for row in rows) / len(rows), "inside_default": sum(row["inside_default"] for row in rows) / len(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="fc,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    later = []
    with Folder() as folder:
        for number in range(1, options.rounds + 1):
            rows = one_round(options.models.split(","), options.steps, number, folder, folder / "calibration.jsonl")
            later += rows if number > 3 else []
            its = summary(rows)
            if options.json:
                print(*map(json.dumps, [*rows, {"event": "round", "round": number, **its}]), sep="\n", flush=True)
                continue
            print(f"round {number}: interval {its['width']:.2f} wide, {100 * its['inside']:.0f} % of {its['runs']} runs inside; {100 * its['inside_default']:.0f} % inside 0.8 to 1.25 times the forecast", flush=True)
    if later:
        its = summary(later)
        print(json.dumps({"event": "later", **its}) if options.json else f"from round 4 on: {its['width']:.2f} wide, {100 * its['inside']:.0f} % of {its['runs']} runs inside; {100 * its['inside_default']:.0f} % inside 0.8 to 1.25 times the forecast")


if __name__ == "__main__":
    main()

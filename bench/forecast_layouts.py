#!/usr/bin/env python3
"""Step times and memory that the planner forecasts for a model on this machine, beside what trainings then measure, and whether --layout auto found the best.

    bench/forecast_layouts.py [--models fc,cnn,...] [--steps 30] [--rounds 2] [--json]

Each model is measured once (`cohort plan --profile`), each layout forecast from that and trained --rounds times, in turns; the least median step counts. The interval is the
forecast's own, 90 %. Memory is the largest resident peak of a rank. At the end: error of all forecasts (median, 90th percentile), how many steps lay inside their
interval, and for each model how much slower the layout that auto takes was than the fastest of the others, both trained once more in turns.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run, run_ok

IMAGES = ["--data", "synthetic:1x28x28,classes=10,samples=2000"]
COLOURS = ["--data", "synthetic:3x32x32,classes=10,samples=1000"]
TEXT = ["--data", "synthetic:text,samples=1000", "--context", "64"]
MODELS = {
    "fc": ["--model", "fc:hidden=1024,layers=3", *IMAGES, "--global-batch", "128"],
    "cnn": ["--model", "cnn", *IMAGES, "--global-batch", "64"],
    "resnet8": ["--model", "resnet8", *COLOURS, "--global-batch", "32"],
    "lstm": ["--model", "lstm:hidden=256", *TEXT, "--global-batch", "32"],
    "transformer": ["--model", "transformer:width=192,layers=4,heads=4", *TEXT, "--global-batch", "32"],
    "inception": ["--model", "inception", *COLOURS, "--global-batch", "16"],
}
LAYOUTS = [
    ("single", 1, []), ("dp=2", 2, []), ("dp=2,zero=3", 2, []), ("pp=2,schedule=gpipe,microbatches=4", 2, []), ("pp=2,schedule=1f1b,microbatches=4", 2, []),
    ("pp=2,schedule=zb-h1,microbatches=4", 2, []), ("tp=2", 2, []), ("pp=2,schedule=1f1b,microbatches=2", 2, ["--accumulate", "2"]),
]


def train(model, workers, layout, more, steps, folder):
    code, out, err = run(["train", *model, "--lr", "0.001", "--workers", workers, "--layout", layout, *more, "--steps", steps, "--quiet", "--json", "--run", folder / f"run{time.monotonic_ns()}"], timeout=600)
    if code != 0:
        return None, err.strip().splitlines()[-1]
    return next(json.loads(line) for line in out.splitlines() if '"event":"done"' in line), ""


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    errors, memory_errors, inside = [], [], []
    for name in options.models.split(","):
        model = MODELS[name]
        with Folder() as folder:
            profile, begin = folder / "profile.json", time.monotonic()
            run_ok(["plan", *model, "--workers", 2, "--precision", "fp32", "--profile", profile, "--no-what-if"], timeout=600)
            planned_seconds = time.monotonic() - begin
            batch = model[model.index("--global-batch") + 1]
            forecasts, measured, memory = {}, {}, {}
            for layout, workers, more in LAYOUTS:
                code, out, err = run(["plan", "--profile", profile, "--global-batch", batch, "--layout", layout, *more, "--no-what-if", "--json"], timeout=100)
                if code == 0:
                    forecasts[layout, tuple(more)] = json.loads(out)
                elif not options.json:
                    print(f"{name:12} {layout:40} no forecast: {err.strip()[:100]}")
            for _ in range(options.rounds):
                for layout, workers, more in LAYOUTS:
                    if (layout, tuple(more)) not in forecasts:
                        continue
                    plan = folder / "plan.json"
                    plan.write_text(json.dumps({"format": "cohort-plan", **{k: v for k, v in forecasts[layout, tuple(more)].items() if k == "layout"}}))
                    done, why = train(model, workers, plan, [], options.steps, folder)
                    if done is None:
                        print(f"{name:12} {layout:40} not trained: {why[:120]}")
                        del forecasts[layout, tuple(more)]
                        continue
                    measured.setdefault((layout, tuple(more)), []).append(done["measured_step_seconds"])
                    memory[layout, tuple(more)] = max(done["peak_memory_bytes"])
            code, out, err = run(["train", *model, "--lr", "0.001", "--workers", 2, "--layout", "auto", "--steps", options.steps, "--quiet", "--json", "--run", folder / "auto"], timeout=600)
            auto = best = float("nan")
            if code == 0:  # What it took, in turns with the fastest of the others.
                fastest = min(measured, key=lambda key: min(measured[key]))
                plans = {"auto": folder / "auto" / "plan.json", "best": folder / "best.json"}
                plans["best"].write_text(json.dumps({"format": "cohort-plan", "layout": forecasts[fastest]["layout"]}))
                turns = {name: [] for name in plans}
                for _ in range(max(3, options.rounds)):
                    for which, plan in plans.items():
                        layout = json.loads(plan.read_text())["layout"]
                        done, why = train(model, layout["dp"] * layout["pp"] * layout["tp"], plan, [], options.steps, folder)
                        turns[which].append(done["measured_step_seconds"] if done else sys.exit(why))
                auto, best = min(turns["auto"]), min(turns["best"])
            for key, times in measured.items():
                forecast, seconds = forecasts[key], min(times)
                error = forecast["predicted_step_seconds"] / seconds - 1
                memory_error = forecast["peak_memory_bytes"] / memory[key] - 1
                errors.append(abs(error)), memory_errors.append(abs(memory_error))
                inside.append(forecast["interval"][0] <= seconds <= forecast["interval"][1])
                row = {"event": "forecast", "model": name, "layout": ",".join([key[0], *(f"accumulate={value}" for value in key[1][1:])]), "predicted_step_seconds": forecast["predicted_step_seconds"],
                       "measured_step_seconds": seconds, "error": error, "inside": inside[-1], "predicted_memory_bytes": forecast["peak_memory_bytes"], "measured_memory_bytes": memory[key]}
                if options.json:
                    print(json.dumps(row), flush=True)
                else:
                    print(f"{name:12} {row['layout']:44} {1e3 * row['predicted_step_seconds']:8.1f} ms forecast {1e3 * seconds:8.1f} ms measured {100 * error:+6.1f} % {'inside' if inside[-1] else 'outside':8} memory {100 * memory_error:+6.1f} %", flush=True)
            chosen = [line for line in err.splitlines() if "auto: layout" in line]
            summary = {"event": "auto", "model": name, "measured_step_seconds": auto, "best_step_seconds": best, "regret": auto / best - 1, "planning_seconds": planned_seconds}
            print(json.dumps(summary) if options.json else f"{name:12} auto {1e3 * auto:.1f} ms, {100 * summary['regret']:+.1f} % against the best; measured and planned in {planned_seconds:.1f} s; {' '.join(chosen)[-80:]}", flush=True)
    total = {"event": "errors", "median": statistics.median(errors), "p90": share(errors, 0.9), "inside": sum(inside) / len(inside), "memory_median": statistics.median(memory_errors), "rows": len(errors)}
    print(json.dumps(total) if options.json else f"{len(errors)} steps: error median {100 * total['median']:.1f} %, 90 % below {100 * total['p90']:.1f} %, {100 * total['inside']:.0f} % inside their interval; memory median {100 * total['memory_median']:.1f} %")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What the ladder advises as memory gets short, and whether what it advises then trains.

    bench/ladder.py [--models fc,cnn,transformer] [--workers 2] [--steps 3] [--most 4] [--json]

For each model --memory-limit begins at what plain data parallelism is forecast to need and is halved until nothing fits. At each limit `cohort plan --ladder` is asked, and
of the ways out that fit the --most fastest and the last ones (a smaller batch, shorter inputs) are trained with the options that it printed, under that limit. A row: the
limit, the way out, its forecast and the measured peak of tensors and step. "died" is a way out that was advised and did not train: there should be none.
Two workers on this machine; ways out that need more workers than that are not trained.
"""
import argparse
import json
import os
import pathlib
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run

IMAGES = ["--data", "synthetic:1x28x28,classes=10,samples=2000"]
MODELS = {
    "fc": ["--model", "fc:hidden=1024,layers=3", *IMAGES, "--global-batch", "512"],
    "cnn": ["--model", "cnn", *IMAGES, "--global-batch", "128"],
    "transformer": ["--model", "transformer:width=192,layers=4,heads=4", "--data", "synthetic:text,samples=1000", "--context", "64", "--global-batch", "32", "--optimizer", "adam"],
}


def ladder(model, workers, limit):
    code, out, err = run(["plan", "--ladder", *model, "--workers", workers, "--memory-limit", limit, "--json"], timeout=300)
    if code not in (0, 3):
        raise SystemExit(f"plan --ladder: exit code {code}: {err}")
    return json.loads(out.splitlines()[-1])


def command(model, workers, options):
    """The last of an option that comes twice counts: what the ladder says goes over what was typed."""
    words, typed = shlex.split(options), [*model, "--workers", str(workers)]
    names = {word for word in words if word.startswith("--")}
    kept = [word for i, word in enumerate(typed) if not (word in names or (i > 0 and typed[i - 1] in names))]
    return [*kept, *words]


def train(model, workers, rung, limit, steps, folder):
    arguments = ["train", *command(model, workers, rung["options"]), "--memory-limit", limit, "--lr", "1e-5", "--steps", steps, "--quiet", "--json", "--run", folder / "run"]
    code, _, err = run(arguments, timeout=300)
    if code != 0:
        return {"trained": False, "why": next((line for line in err.splitlines() if "error" in line), "")[-110:]}
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    done, ranks = next(x for x in lines if x["event"] == "done"), next(x for x in lines if x["event"] == "ranks")
    return {"trained": True, "step": done["measured_step_seconds"], "peak": max(rank["peak_tensor_bytes"] for rank in ranks["ranks"])}


def chosen(rungs, workers, most):
    fitting = [rung for rung in rungs if rung["fits"] and rung["num_workers"] <= workers]
    last = [rung for rung in fitting if rung["name"].startswith(("smaller", "shorter", "fewer"))]
    same = sorted((rung for rung in fitting if rung not in last), key=lambda rung: rung["predicted_step_seconds"])
    return same[:most] + last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    num_advised = num_trained = 0
    errors = []
    for name in options.models.split(","):
        model = MODELS[name]
        limit = ladder(model, options.workers, 10**12)["rungs"][0]["predicted_peak_memory_bytes"]
        while True:
            answer = ladder(model, options.workers, limit)
            fitting = chosen(answer["rungs"], options.workers, options.most)
            if not fitting:
                least = min(answer["rungs"], key=lambda rung: rung["predicted_peak_memory_bytes"])
                row = {"event": "nothing", "model": name, "limit": limit, "least": least["name"], "least_bytes": least["predicted_peak_memory_bytes"]}
                print(json.dumps(row) if options.json else f"{name:12} {limit / 1e6:8.1f} MB  nothing fits on {options.workers} workers; the least is {least['name']} with {least['predicted_peak_memory_bytes'] / 1e6:.1f} MB", flush=True)
                break
            for rung in fitting:
                with Folder() as folder:
                    found = train(model, options.workers, rung, limit, options.steps, folder)
                num_advised, num_trained = num_advised + 1, num_trained + found["trained"]
                if found["trained"]:
                    errors.append(rung["predicted_peak_memory_bytes"] / found["peak"] - 1)
                row = {"event": "rung", "model": name, "limit": limit, **{key: rung[key] for key in ("name", "options", "predicted_peak_memory_bytes", "predicted_step_seconds")}, **found}
                measured = f"{found['peak'] / 1e6:8.1f} MB {1e3 * found['step']:8.1f} ms" if found["trained"] else f"died: {found['why'][:120]}"
                print(json.dumps(row) if options.json else f"{name:12} {limit / 1e6:8.1f} MB  {rung['name']:26} {rung['predicted_peak_memory_bytes'] / 1e6:8.1f} MB {1e3 * rung['predicted_step_seconds']:8.1f} ms  {measured}  {rung['options']}", flush=True)
            limit //= 2
    errors.sort()
    total = {"event": "total", "advised": num_advised, "trained": num_trained, "memory_error_median": errors[len(errors) // 2] if errors else None, "memory_error_least": errors[0] if errors else None, "memory_error_most": errors[-1] if errors else None}
    print(json.dumps(total) if options.json else f"{num_trained} of {num_advised} ways out that were advised trained; memory forecast / measured: median {100 * total['memory_error_median']:+.0f} %, {100 * total['memory_error_least']:+.0f} to {100 * total['memory_error_most']:+.0f} %")
    return 0 if num_trained == num_advised else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What unequal workers cost: equal shares of the batch, those that `cohort plan` finds from measured speeds, and those that `--shares auto` comes to, with the waste and the step time predicted and measured.

    bench/uneven.py [--model cnn] [--data SPEC] [--global-batch 64] [--factors 2,4] [--steps 60] [--rounds 3] [--json]

Two workers, of which the second is slowed down by each factor (--inject slow:1:F: it sleeps). Runs alternate; each figure is the median of the rounds. Waste is the share of both workers' seconds spent waiting for the slower one.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run_ok


def waste_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["event"] == "waste")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--data", default="synthetic:1x28x28,classes=10,samples=4000")
    parser.add_argument("--global-batch", default="64")
    parser.add_argument("--factors", default="2,4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    common = ["--model", options.model, "--data", options.data, "--global-batch", options.global_batch, "--workers", 2]
    for factor in options.factors.split(","):
        slow = ["--inject", f"slow:1:{factor}"]
        plan = run_ok(["plan", *common, *slow, "--precision", "fp32", "--layout", "dp=2,pp=1,tp=1,zero=0,accumulate=1", "--no-what-if", "--json"], timeout=600)[0]
        uneven = plan["uneven"]
        shares = {"equal": "equal", "planned": plan["layout"].get("shares", "equal"), "auto": "auto"}
        measured = {name: [] for name in shares}
        with Folder() as folder:
            for number in range(options.rounds):
                for name, text in shares.items():
                    place = folder / f"{name}-{number}"
                    run_ok(["train", *common, *slow, "--shares", text, "--steps", options.steps * (2 if name == "auto" else 1), "--eval-every", "100000", "--checkpoint-every", "end", "--quiet", "--run", place], timeout=600)
                    measured[name].append(waste_of(place))
        predicted = {"equal": (uneven["predicted_equal_waste"], uneven["predicted_equal_step_seconds"]), "planned": (uneven["predicted_waste"], uneven["predicted_step_seconds"]), "auto": (None, None)}
        for name in shares:
            middle = {key: statistics.median(one[key] for one in measured[name]) for key in ("measured_waste", "measured_step_seconds")}
            row = {"model": options.model, "slow": float(factor), "shares": name, "given": shares[name], "last_shares": measured[name][-1]["shares"], "predicted_waste": predicted[name][0], **middle, "predicted_step_seconds": predicted[name][1]}
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            forecast = "predicted      -          - " if predicted[name][0] is None else f"predicted {100 * predicted[name][0]:4.0f} %  {1e3 * predicted[name][1]:7.1f} ms"
            print(f"{options.model:10} slow:1:{factor:4} {name:8} {':'.join(f'{share:.2f}' for share in row['last_shares']):10} {forecast}   measured {100 * row['measured_waste']:4.0f} %  {1e3 * row['measured_step_seconds']:7.1f} ms", flush=True)


if __name__ == "__main__":
    main()

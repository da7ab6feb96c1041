#!/usr/bin/env python3
"""The gradient noise scale of every evidence study beside its critical batch size (McCandlish et al. 2018): the best trial is trained again with `--noise-scale`, and the estimate taken over the last half of its way to the goal.

    bench/evidence_noise.py [ARCHIVE.tar.xz ...] [--picture FILE.svg] [--keep DIR]

The batch size is the largest of the study that is not above the critical one and at least 8 (a batch must be divided for the estimate: 4 micro-batches). Seconds to a minute for a study.
Studies of a part of the samples, or that search more than learning rate and momentum, are left out: `train` is not given these.
"""
import argparse
import json
import pathlib
import tomllib

from compressed_rows import Folder, folder_of, run_ok
from evidence import HERE, Archives, Curve, hyperbola_of, picture, print_table

NUM_PIECES = 4


def best_of(archives, name, largest):
    """The row of the best trial at the batch size that is measured."""
    rows = archives.best_trials(name)
    sizes = sorted(int(row["batch size"]) for row in rows)
    size = max([b for b in sizes if 8 <= b <= largest] or [min(b for b in sizes if b >= 8)])
    return next(row for row in rows if int(row["batch size"]) == size)


def specification(name):
    return tomllib.loads((HERE / "studies/evidence" / f"{name}.toml").read_text())


def noise_scale(folder, name, best):
    """tr(Sigma) / |G|^2 over the last half of the steps to the goal: both are averaged, then divided."""
    workload = specification(name)["workload"]
    batch, steps = int(best["batch size"]), max(int(best["steps"]), 8)
    run_folder = folder / name
    if not (run_folder / "metrics.jsonl").exists():
        options = {"--image-size": workload.get("image_size"), "--context": workload.get("context"), "--momentum": best.get("momentum") or None}
        run_ok(["train", "--model", workload["model"], "--data", workload["data"], "--optimizer", workload["optimizer"], "--lr", best["learning_rate"], *(word for option, value in options.items() if value for word in (option, value)),
                "--global-batch", batch, "--accumulate", NUM_PIECES, "--noise-scale", max(1, steps // 400), "--steps", steps, "--eval-every", steps, "--val-samples", 500, "--test-samples", 0, "--threads", 1, "--run", run_folder, "--quiet"], timeout=3600)
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line["event"] == "noise_scale" and line["step"] > steps / 2]
    small, large = measured[0]["small_batch"], measured[0]["large_batch"]
    small_squared, large_squared = (sum(line[key] for line in measured) / len(measured) for key in ("small_squared", "large_squared"))
    gradient = (large * large_squared - small * small_squared) / (large - small)
    return (small_squared - large_squared) / (1 / small - 1 / large) / gradient if gradient > 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--keep")
    options = parser.parse_args()
    archives = Archives(options.archives or sorted((HERE / "studies/evidence/raw").glob("*.tar.xz")))
    rows, points = [], {}
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        for name in archives.workloads:
            law, spec = hyperbola_of(archives.fit(name)), specification(name)
            if not law or "train_samples" in spec["workload"] or spec["search"].keys() - {"learning_rate", "momentum"} or spec["study"].get("evaluate_train"):
                continue
            best = best_of(archives, name, law[1])
            scale = noise_scale(folder, name, best)
            rows.append([name, best["batch size"], best["steps"], f"{scale:.0f}" if scale else "hidden by noise", f"{law[1]:.0f}", f"{scale / law[1]:.2f}" if scale else ""])
            if scale:
                points.setdefault(name.split("-")[0], []).append((law[1], scale))
    print_table(["study", "measured at batch size", "steps", "noise scale, samples", "critical batch size", "ratio"], rows)
    if options.picture:
        options.picture.write_text(picture("Noise scale against the critical batch size", [Curve(family, sorted(found), drawn="points") for family, found in points.items()], axes=("critical batch size (hyperbola), samples", "noise scale, samples"), law=lambda x: x))


if __name__ == "__main__":
    main()

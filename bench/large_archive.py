#!/usr/bin/env python3
"""An archive of the shape that Shallue et al. (2019) published, made up, and what the program needs to read it.

    bench/large_archive.py --out DIR [--rows 71600000] [--trials 427] [--only mnist/simple_cnn_base,lm1b] [--seed 1] [--measure [--json]]

Workloads, batch sizes, search spaces and goals are those of studies/paper/*.toml; so are budgets, which are guesses there. Of the trials of each batch size about half are complete, 4 in 10 diverged (INFEASIBLE, with fewer rows), the rest were left.
Curves fall as those of trainings do, by a power of the step, with noise that shrinks at the end (the learning rate is decayed); the best trial is at the goal after a third of the budget. Twenty curves are made for each batch size, and each trial has
one of them: numbers are written once and not per trial, so that a core makes some hundred MB/s. The number of rows is met within a few per cent, where budgets allow it.

--measure (also of an archive that is there) runs `cohort study import` and `report` over the archive and `fit` over its largest workload, and prints the peak of resident memory, seconds and rows a second. Needs no package; --measure needs a built tree (COHORT_BIN).
"""
import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COHORT = os.environ.get("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
NUM_CURVES = 20
COMPLETE, INCOMPLETE = 0.52, 0.06                       # Shares of the trials; the others diverge.
GROUPS = {"mnist_6875": "mnist_subsets", "mnist_13750": "mnist_subsets", "mnist_27500": "mnist_subsets", "mnist_55000": "mnist_subsets", "imagenet_half_images": "imagenet_subsets",
          "imagenet_half_classes": "imagenet_subsets", "mnist_solution_quality": "solution_quality", "fashion_mnist_solution_quality": "solution_quality"}
ARCHIVE_NAMES = {"decay_steps": "learning_rate_decay_steps", "end_factor": "end_learning_rate_factor", "nesterov": "nesterov_momentum"}
SCALES = {"linear": "LINEAR_SCALE", "log": "LOG_SCALE", "reverse-log": "REVERSE_LOG_SCALE"}
# Of the hardest published goal: the specs have stand-ins for text and for Open Images.
GOALS = {"open_images_v4": ("average_precision", 0.31), "lm1b": ("cross_entropy_error", 3.9), "common_crawl": ("cross_entropy_error", 3.9)}


class Workload:
    def __init__(self, spec):
        names, study = spec["workload"], spec["study"]
        self.dataset, self.model, self.optimizer = names["dataset_name"], names["model_name"], ARCHIVE_NAMES.get(names["optimizer"], names["optimizer"])
        self.budgets = dict(zip(study["batch_sizes"], study["steps"] if isinstance(study["steps"], list) else [study["steps"]] * len(study["batch_sizes"])))
        self.search = spec["search"]
        self.metric, self.goal = GOALS[self.dataset] if self.dataset in GOALS else ("classification_error", min(float(goal.partition("<")[2]) for goal in study["goals"]))
        if self.model in ("transformer_wide", "transformer_narrow_and_shallow"):
            self.goal = 4.2

    def folder(self):
        return pathlib.Path(GROUPS.get(self.dataset, ""), self.dataset.removesuffix("_solution_quality"), self.model, self.optimizer)

    def columns(self):
        kinds = ["cross_entropy_error"] + ([self.metric] if self.metric != "cross_entropy_error" else [])
        return [f"{split}/{kind}" for split in ("train", "val", "test") for kind in kinds]

    def parameter_configs(self, budget):
        configs = {}
        for name, one in self.search.items():
            if name == "decay_fraction":
                configs["learning_rate_decay_steps"] = {"type": "INTEGER", "scale": "", "min_value": max(1, int(one["min"] * budget)), "max_value": max(1, int(one["max"] * budget))}
            elif "values" in one:
                configs[name] = {"type": "DISCRETE", "feasible_points": one["values"]}
            else:
                configs[ARCHIVE_NAMES.get(name, name)] = {"type": "DOUBLE", "scale": SCALES[one["scale"]], "min_value": one["min"], "max_value": one["max"]}
        return configs


class Curve:
    """The text of one measurements.csv, and where each line of it ends."""

    def __init__(self, workload, budget, num_rows, chance):
        self.slowness = math.exp(1.2 * abs(chance.gauss(0, 1)))      # The best are at the goal after a third of the budget.
        needed, rises = self.slowness * budget / 3, workload.metric == "average_precision"
        start = {"classification_error": 0.9, "cross_entropy_error": 10.0, "average_precision": 0.001}[workload.metric]
        per_split = len(workload.columns()) // 3
        lines, size, self.ends = ["step," + ",".join(workload.columns()) + "\n"], 0, []
        self.header_size = size = len(lines[0])
        for i in range(num_rows):
            step = i * budget // max(1, num_rows - 1)
            progress = math.log1p(63 * step / needed) / math.log(64)
            value = start + (workload.goal - start) * progress if rises else start * (workload.goal / start) ** min(progress, 1.2)
            noise = 0.06 if step < 0.7 * budget else 0.015
            cells = []
            for split in (0.95, 1.0, 1.02):
                here = min(0.999, value * split * (1 + noise * chance.gauss(0, 1))) if workload.metric != "cross_entropy_error" else value * split * (1 + 0.3 * noise * chance.gauss(0, 1))
                cells += ["%.6g" % (here if per_split == 1 else 2.5 * abs(value) * split * (1 + noise * chance.gauss(0, 1)))] + (["%.6g" % abs(here)] if per_split == 2 else [])
            lines.append(f"{step},{','.join(cells)}\n")
            size += len(lines[-1])
            self.ends.append(size)
        self.text = "".join(lines).encode()

    def of(self, num_rows):
        return self.text[:self.ends[min(num_rows, len(self.ends)) - 1] if num_rows > 0 else self.header_size]


def drawn(configs, slowness, is_divergent, chance):
    """A point of the space: learning rates off the middle by as much as the trial is slow, high ones for those that diverge."""
    point = {}
    for name, one in configs.items():
        unit = chance.random()
        if name == "learning_rate":
            away = min(0.45, 0.15 * math.log(slowness))
            unit = 0.8 + 0.2 * unit if is_divergent else 0.5 - away if unit < 0.5 else 0.5 + 0.6 * away
        if "feasible_points" in one:
            point[name] = chance.choice(one["feasible_points"])
            continue
        low, high = one["min_value"], one["max_value"]
        if one["scale"] == "LOG_SCALE":
            point[name] = low * (high / low) ** unit
        elif one["scale"] == "REVERSE_LOG_SCALE":
            point[name] = 1 - (1 - low) * ((1 - high) / (1 - low)) ** unit
        else:
            point[name] = low + (high - low) * unit
        if one["type"] == "INTEGER":
            point[name] = int(point[name])
    return point


def rows_of_batch(budget, limit, num_trials):
    """A whole curve's rows, and those of all trials together, some of which are shorter."""
    whole = max(2, min(limit, budget + 1))
    return whole, num_trials * whole * (COMPLETE + INCOMPLETE / 2 + (1 - COMPLETE - INCOMPLETE) / 3)


def most_rows(workloads, num_rows, num_trials):
    """How many rows a whole curve may have so that all of them have `num_rows`."""
    low, high = 2, 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        total = sum(rows_of_batch(budget, middle, num_trials)[1] for workload in workloads for budget in workload.budgets.values())
        low, high = (middle, high) if total <= num_rows else (low, middle - 1)
    return low


def write_batch(folder, workload, batch_size, budget, limit, num_trials, chance):
    configs = workload.parameter_configs(budget)
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"batch_size": batch_size, "dataset": workload.dataset, "early_stopping": False, "model": workload.model, "optimizer": workload.optimizer,
                                                   "parameter_configs": configs, "train_steps": budget}))
    whole, _ = rows_of_batch(budget, limit, num_trials)
    curves = [Curve(workload, budget, whole, chance) for _ in range(min(NUM_CURVES, num_trials))]
    written = 0
    for trial in range(1, num_trials + 1):
        unit, curve = chance.random(), curves[trial % len(curves)]
        status = "COMPLETE" if unit < COMPLETE else "INCOMPLETE" if unit < COMPLETE + INCOMPLETE else "INFEASIBLE"
        share = 1 if status == "COMPLETE" else chance.random() * (1 if status == "INCOMPLETE" else 2 / 3)
        rows = whole if share == 1 else int(share * whole)
        (folder / str(trial)).mkdir()
        (folder / str(trial) / "metadata.json").write_text(json.dumps({"parameters": drawn(configs, curve.slowness, status == "INFEASIBLE", chance), "status": status,
                                                                      "steps": budget if share == 1 else int(share * budget), "trial_id": trial}))
        (folder / str(trial) / "measurements.csv").write_bytes(curve.of(rows))
        written += rows
    return written


def make(out, num_rows, num_trials, only, seed):
    """{folder of a workload: rows}"""
    workloads = [Workload(tomllib.loads(path.read_text())) for path in sorted((ROOT / "studies/paper").glob("*.toml"))]
    workloads = [one for one in workloads if not only or any(str(one.folder()).startswith(start) for start in only)]
    if not workloads:
        sys.exit("--only: no workload's folder begins so, such as mnist/simple_cnn_base or lm1b")
    limit, rows = most_rows(workloads, num_rows, num_trials), {}
    for workload in workloads:
        for batch_size, budget in workload.budgets.items():
            folder = out / workload.folder()
            rows[folder] = rows.get(folder, 0) + write_batch(folder / str(batch_size), workload, batch_size, budget, limit, num_trials, random.Random(f"{seed} {workload.folder()} {batch_size}"))
    return rows


def run(arguments):
    """(peak of resident bytes, seconds)"""
    begin = time.monotonic()
    pid = os.posix_spawn(COHORT, [COHORT, *map(str, arguments)], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"cohort {' '.join(map(str, arguments))} failed")
    return usage.ru_maxrss * 1024, time.monotonic() - begin


def count_rows(folder):
    """{workload's folder: rows} of an archive that is there."""
    counted = {}
    for workload in sorted({study.parent.parent for study in folder.glob("**/study.json")}):
        lines = subprocess.run([COHORT, "study", "import", workload, "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
        counted[workload] = sum(line["measurements"] for line in map(json.loads, lines) if line["event"] == "batch")
    return counted


def measure(out, rows, as_json):
    largest, total = max(rows, key=rows.get), sum(rows.values())
    for name, arguments, num_rows in (("import", [out], total), ("report", [out, "--out", out / "report.html"], total), ("fit", [largest], rows[largest])):
        peak, seconds = run(["study", name, *arguments])
        if as_json:
            print(json.dumps({"action": name, "rows": num_rows, "peak_bytes": peak, "seconds": seconds}), flush=True)
        else:
            print(f"study {name:6}  {num_rows:>12,} rows  peak {peak / 2**20:7,.0f} MiB  {seconds:7.1f} s  {num_rows / seconds / 1e6:6.2f} million rows/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="a new folder; with --measure also one that is there")
    parser.add_argument("--rows", type=int, default=71_600_000, metavar="N", help="measurements of all trials together (default: as published)")
    parser.add_argument("--trials", type=int, default=427, metavar="N", help="of each batch size (default: 194,000 of 454 searches)")
    parser.add_argument("--only", default="", metavar="FOLDER,..", help="workloads whose folder begins so")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true", help="peak memory, seconds and rows a second of import, report and fit")
    parser.add_argument("--json", action="store_true", help="with --measure: one JSON object a line")
    arguments = parser.parse_args()
    if arguments.out.exists():
        if not arguments.measure:
            parser.error(f"--out {arguments.out}: is there already; give a new folder, or --measure for that one")
        return measure(arguments.out, count_rows(arguments.out), arguments.json)
    if arguments.rows < 1 or arguments.trials < 1:
        parser.error("--rows and --trials are numbers from 1 up")
    if arguments.json and not arguments.measure:
        parser.error("--json is how --measure prints; give both")
    begin = time.monotonic()
    rows = make(arguments.out, arguments.rows, arguments.trials, list(filter(None, arguments.only.split(","))), arguments.seed)
    if not arguments.json:
        print(f"{len(rows)} workloads, {sum(rows.values()):,} rows, largest {max(rows, key=rows.get)}: {time.monotonic() - begin:.0f} s", flush=True)
    if arguments.measure:
        measure(arguments.out, rows, arguments.json)


if __name__ == "__main__":
    main()

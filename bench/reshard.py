#!/usr/bin/env python3
"""Seconds and bytes of saving a checkpoint under one layout and going on under another, beside a plain copy of the same bytes.

    bench/reshard.py [--program build/release/bin/cohort] [--megabytes 500] [--rounds 3]

Prints a JSON line each: {"from":"pp=2,...","to":"tp=2","bytes":n,"save_seconds":x,"load_seconds":x,"copy_seconds":x,"read_seconds":x}; medians over the rounds. The copy
is `cp` with fsync of the checkpoint's files, the read is of all their bytes into memory; both from the page cache, as the load is.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

PAIRS = [("dp=2,zero=1", "single"), ("single", "pp=2,microbatches=2"), ("pp=2,microbatches=2", "tp=2"), ("tp=2", "dp=2,zero=3"), ("dp=2,tp=2", "pp=2,tp=2,microbatches=2")]


def events(run, name):
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["event"] == name]


def train(options, run, layout, steps, resume):
    command = [options.program, "train", "--model", f"fc:hidden={options.width},layers=3", "--data", "synthetic:1x16x16,classes=8,samples=64", "--global-batch", "16",
               "--optimizer", "sgd", "--lr", "0.001", "--layout", layout, "--steps", str(steps), "--quiet", "--run", str(run), *(["--resume"] if resume else [])]
    subprocess.run(command, check=True, capture_output=True)


def copy(files, folder):
    began = time.perf_counter()
    for file in files:
        target = folder / file.name
        shutil.copyfile(file, target)
        with open(target, "rb") as handle:
            os.fsync(handle.fileno())
    seconds = time.perf_counter() - began
    for file in files:
        (folder / file.name).unlink()
    return seconds


def read(files):
    began = time.perf_counter()
    for file in files:
        file.read_bytes()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/cohort")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.width = int((options.megabytes * 1e6 / 4 / 2) ** 0.5) // 8 * 8  # Two square matrices hold nearly all.
    for source, target in PAIRS:
        seconds = {"save": [], "load": [], "copy": [], "read": []}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as name:
                run = pathlib.Path(name) / "run"
                train(options, run, source, 1, False)
                files = list((run / "checkpoints" / "step-000000001").glob("*.safetensors"))
                size = sum(file.stat().st_size for file in files)
                seconds["save"].append(events(run, "checkpoint")[-1]["seconds"])
                seconds["read"].append(read(files))
                seconds["copy"].append(copy(files, pathlib.Path(name)))
                train(options, run, target, 2, True)
                seconds["load"].append(events(run, "resume")[-1]["seconds"])
        print(json.dumps({"from": source, "to": target, "bytes": size, **{key + "_seconds": round(statistics.median(values), 3) for key, values in seconds.items()}}), flush=True)


if __name__ == "__main__":
    main()

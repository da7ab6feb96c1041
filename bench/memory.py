#!/usr/bin/env python3
"""Peak memory of all workers of a host together, for each layout and for PyTorch's DDP and FSDP.

    bench/memory.py [--workers 2,4] [--workloads mlp,cnn,gpt] [--optimizer adam] [--steps 40] [--json]

Each job runs alone; some thirty times a second the proportional set size (Pss: a page that k processes share counts 1/k in each) of each of its processes is read. The largest of each process, added up, is the job's peak: what the
host needs when all are at their peak together (whether they were at the moment of a reading is chance). A job of one tiny model gives what the processes need anyway (interpreter, libraries); `beyond_start_bytes` is the peak without that. Needs a built tree; PyTorch from .venv.
"""
import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COHORT = os.environ.get("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
MODELS = {"mlp-small": ("mlp-small", "synthetic:1x28x28,classes=10,samples=2000", 16), "mlp": ("mlp", "synthetic:1x28x28,classes=10,samples=2000", 64),
          "cnn": ("cnn-bench", "synthetic:1x28x28,classes=10,samples=2000", 32), "gpt": ("gpt", "synthetic:text,samples=400", 8)}


def children(pid):
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += children(int(child))
        except OSError:
            pass
    return found


def pss_bytes(pid):
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def peak(command, cwd=None):
    """The largest Pss of the command and of each of its descendants, added up; None when it fails."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    process = subprocess.Popen([str(part) for part in command], cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    largest = collections.Counter()
    while process.poll() is None:
        for pid in children(process.pid):
            largest[pid] = max(largest[pid], pss_bytes(pid))
        time.sleep(0.03)
    return sum(largest.values()) if process.returncode == 0 else None


def cohort(workload, workers, layout, options):
    model, data, batch = MODELS[workload]
    with tempfile.TemporaryDirectory() as folder:
        extra = (["--weights", "private"] if layout == "private" else []) + (["--context", "128"] if "text" in data else [])
        text = "dp" if layout in ("shared", "private") else layout
        return peak([COHORT, "train", "--model", model, "--data", data, "--workers", workers, "--layout", text, *extra, "--optimizer", options.optimizer, "--lr", "0.001",
                     "--global-batch", batch * workers, "--steps", options.steps, "--threads", "1", "--quiet", "--run", folder + "/run"])


def pytorch(workload, workers, mode, options):
    return peak([options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", workers, "ddp.py", workload, options.steps, mode, options.optimizer], cwd=ROOT / "bench/peers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--workloads", default="mlp,cnn,gpt")
    parser.add_argument("--optimizer", default="adam", choices=["momentum", "adam"])
    parser.add_argument("--steps", default="40")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems = [("cohort", layout, cohort) for layout in ("shared", "private", "zero=1", "zero=2", "zero=3")] + [("pytorch", mode, pytorch) for mode in ("ddp", "fsdp")]
    for workers in options.workers.split(","):
        workers = int(workers)
        start = {"cohort": cohort("mlp-small", workers, "shared", options), "pytorch": pytorch("mlp-small", workers, "ddp", options)}
        for workload in options.workloads.split(","):
            for system, layout, measure in systems:
                bytes_ = measure(workload, workers, layout, options)
                if bytes_ is None:
                    print(f"{system} {layout} did not run", file=sys.stderr)
                    continue
                row = {"workload": workload, "system": system, "layout": layout, "workers": workers, "optimizer": options.optimizer, "peak_bytes": bytes_, "beyond_start_bytes": bytes_ - (start[system] or 0)}
                if options.json:
                    print(json.dumps(row), flush=True)
                else:
                    print(f"{workload:6} {workers} workers  {system + ' ' + layout:16} peak {bytes_ / 1e6:8.0f} MB, {row['beyond_start_bytes'] / 1e6:8.0f} MB beyond what a tiny model needs", flush=True)


if __name__ == "__main__":
    main()

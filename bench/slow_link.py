#!/usr/bin/env python3
"""Step time on hosts joined by a slow link, for each layout and compression, and whether the program's own advice was right.

    bench/slow_link.py [--megabits 100,1000] [--hosts 0,1] [--model mlp] [--steps 20] [--precision fp16] [--json]

The hosts are network name spaces of this machine (root needed) with links limited by `tc`. --hosts says on which host each rank is: 0,1 is two hosts of one rank, 0,0,1,1 two of two. The run without compression
ends with the program's advice: the step that it predicts for each compression. Then each is trained, and predicted and measured step stand side by side, with what `cohort plan --cluster` forecasts from the model
measured here and the link as it is; at the end the layout that `cohort plan --compress` chooses, trained as well (on one host, where it wants no more).
"""
import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run, run_ok
from test_hosts import Hosts, lines_of

DATA = {"gpt": ["--data", "synthetic:text,samples=400", "--context", "128"]}
IMAGES = ["--data", "synthetic:1x28x28,classes=10,samples=2000"]
SPECS = ("fp16", "bf16", "int8", "topk:0.01", "powersgd:4")
LAYOUTS = ("zero=1", "zero=2", "zero=3")


def train(hosts, host_of_rank, options, layout, folder):
    """The run's `done` line and, where it gave any, its advice."""
    arguments = ["--model", options.model, *DATA.get(options.model, IMAGES), "--global-batch", batch_of(options, host_of_rank), "--optimizer", "momentum", "--lr", "0.001", "--steps", options.steps, "--precision", options.precision, "--threads", "1", "--quiet", "--json",
                 "--layout", layout, "--run", folder / layout.replace(":", "-")]
    lines = lines_of(hosts.train(host_of_rank, arguments))
    return next(line for line in lines if line["event"] == "done"), next((line for line in lines if line["event"] == "exchange_advice"), None)


def planner(options, host_of_rank, megabits, profile, folder):
    """What `cohort plan` forecasts for a layout (None: for the one that it chooses) on these hosts; None where it refuses."""
    cluster = json.loads(profile.read_text())["measured_on"][-1]
    hosts = sorted(set(host_of_rank))
    cluster["hosts"] = [{"num_hosts": 1, "devices_per_host": host_of_rank.count(host), "device": cluster["devices"][0]["name"]} for host in hosts]
    cluster["links"]["across"] = {"latency_seconds": 2e-4, "bytes_per_second": megabits * 1e6 / 8}
    (folder / "cluster.json").write_text(json.dumps(cluster))

    def plan(layout):
        fixed = ["--layout", layout] if layout else []
        code, out, err = run(["plan", "--profile", profile, "--cluster", folder / "cluster.json", "--global-batch", batch_of(options, host_of_rank), "--optimizer", "momentum", *(["--compress"] if not layout or "compress" in layout else []), *fixed, "--no-what-if", "--json"])
        return json.loads(out) if code == 0 else None
    return plan


def batch_of(options, host_of_rank):
    return {"mlp-small": 16, "mlp": 64, "cnn-bench": 32, "gpt": 8}.get(options.model, 32) * len(host_of_rank)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", default="100,1000")
    parser.add_argument("--hosts", default="0,1")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--steps", default="20")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    host_of_rank = [int(host) for host in options.hosts.split(",")]
    num_ranks = len(host_of_rank)
    with Folder() as kept:
        profile = kept / "profile.json"
        run_ok(["plan", "--model", options.model, *DATA.get(options.model, IMAGES), "--global-batch", batch_of(options, host_of_rank), "--workers", num_ranks, "--optimizer", "momentum", "--precision", options.precision, "--profile", profile, "--no-what-if"], timeout=600)
        measure_all(options, host_of_rank, profile)


def measure_all(options, host_of_rank, profile):
    num_ranks = len(host_of_rank)
    for megabits in options.megabits.split(","):
        with Folder() as folder, Hosts(max(host_of_rank) + 1, megabits=int(megabits)) as hosts:
            done, advice = train(hosts, host_of_rank, options, "dp", folder)
            predicted = {row["compress"]: row["predicted_step_seconds"] for row in advice["rows"]}
            rows = [("none", predicted["none"], done["measured_step_seconds"])]
            rows += [(spec, predicted.get(spec), train(hosts, host_of_rank, options, "compress=" + spec, folder)[0]["measured_step_seconds"]) for spec in SPECS]
            rows += [(layout, None, train(hosts, host_of_rank, options, layout, folder)[0]["measured_step_seconds"]) for layout in LAYOUTS]
            plan = planner(options, host_of_rank, int(megabits), profile, folder)
            chosen = plan(None)
            layout = chosen["layout"]
            text = ",".join(f"{key}={layout[key]}" for key in ("dp", "pp", "tp", "zero", "microbatches", "schedule", "accumulate", "compress") if layout[key] != {"dp": 1, "pp": 1, "tp": 1, "zero": 0, "microbatches": 1, "schedule": "1f1b", "accumulate": 1, "compress": "none"}[key]) or "single"
            ranks = layout["dp"] * layout["pp"] * layout["tp"]
            if ranks == 1:  # With the cores of one rank, which the others leave idle.
                code, out, err = run(["train", "--model", options.model, *DATA.get(options.model, IMAGES), "--global-batch", batch_of(options, host_of_rank), "--optimizer", "momentum", "--lr", "0.001", "--steps", options.steps, "--precision", options.precision, "--threads", "1", "--accumulate", layout["accumulate"], "--quiet", "--json", "--run", folder / "single"], timeout=600)
                measured = next(json.loads(line) for line in out.splitlines() if '"event":"done"' in line)["measured_step_seconds"]
            else:
                measured = train(hosts, host_of_rank[:ranks], options, text, folder)[0]["measured_step_seconds"]
            rows.append(("chosen: " + text, None, measured))
            for name, forecast, measured in rows:
                asked = f"dp={num_ranks}" + ("" if name == "none" else "," + name if "=" in name else ",compress=" + name)
                planned = chosen if name.startswith("chosen") else plan(asked)
                row = {"megabits": int(megabits), "hosts": host_of_rank, "model": options.model, "layout": name, "predicted_step_seconds": forecast, "planned_step_seconds": planned and planned["predicted_step_seconds"], "measured_step_seconds": measured}
                if options.json:
                    print(json.dumps(row), flush=True)
                else:
                    print(f"{megabits:>5} Mbit/s  {options.model:9} {name:30} " + (f"advice {1e3 * forecast:8.1f} ms  " if forecast else " " * 20) + (f"plan {1e3 * planned['predicted_step_seconds']:8.1f} ms  " if planned else " " * 18) + f"measured {1e3 * measured:8.1f} ms", flush=True)
            if not options.json:
                print(f"              {advice['sentence']}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What it takes to take the weights from the server of a model, and to push gradients to it, beside a plain copy of the same bytes in memory.

    bench/async_exchange.py [--megabytes 0.1,1,10,50] [--compress none,int8] [--ways memory,messages] [--tickets 60] [--rounds 3] [--json]

`memory`: a worker of rank 0's host, whose versions and gradients go through shared memory. `messages`: a worker with process ids of its own (root needed), as one of another host: it shares no memory with rank 0, and all goes
over the loopback device, encrypted. One sample a work item, so that there is little to compute; what is computed is not counted, nor is making the code of compressed gradients, which is a part of it. Of each work item:

    pull    from when the worker asks for work until the version is in its memory: the server has applied what was pushed before it (a pass of plain SGD) by then. What was given to a connection may still be on its way
            when the worker asks, so a slow link's time for a push is in here
    push    from when it has the gradient until that is in the memory, or given to the connection
    copy    the same bytes once by memcpy, by one thread, from memory that nobody used lately

A number among the ways is that of Mbit/s of a link: rank 0 and the worker are on two hosts then (network name spaces of this machine, limited by tc; root needed).

Rounds alternate; medians of them.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import COHORT, Folder, finish, start
from test_hosts import Hosts, TOKEN
from test_join import listening

SIDE, CLASSES = 32, 10


def hidden_for(megabytes):
    return max(1, round(megabytes * 1e6 / 4 / (SIDE * SIDE + 1 + CLASSES)))


def copy_seconds(num_bytes):
    """Median of copies between blocks that are together far larger than caches."""
    blocks = max(2, 2 * round(3e8 / num_bytes / 2))
    memory = [ctypes.create_string_buffer(int(num_bytes)) for _ in range(min(blocks, 400))]
    for block in memory:
        ctypes.memset(block, 1, len(block))
    seconds = []
    for _ in range(3):
        for at in range(0, len(memory), 2):
            began = time.perf_counter()
            ctypes.memmove(memory[at], memory[at + 1], int(num_bytes))
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def exchange(options, folder, megabytes, compress, way):
    environment = {**os.environ, "COHORT_TOKEN": TOKEN}
    training = ["train", "--model", f"fc:hidden={hidden_for(megabytes)}", "--data", f"synthetic:1x{SIDE}x{SIDE},classes={CLASSES},samples=4096", "--optimizer", "sgd", "--lr", 1e-4, "--threads", 1, "--quiet", "--log-every", 1000000,
                "--eval-every", 1000000000, "--val-samples", 10, "--checkpoint-every", 1000000000, "--global-batch", 1, "--layout", f"sync=async,compress={compress}", "--run", folder]
    if way == "memory":
        code, _, err = finish(start([*training, "--steps", options.tickets, "--listen", "127.0.0.1:0"], env=environment), timeout=600)
        worker = 0
    else:  # Rank 0 makes a work item now and then, and the other the rest, until it has made enough.
        with Hosts(2, megabits=int(way)) if way.isdigit() else contextlib.nullcontext() as hosts:
            def there(host, words, *isolated):
                return subprocess.Popen([*(["ip", "netns", "exec", hosts.names[host]] if hosts else []), *isolated, COHORT, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
            process = there(0, [*training, "--steps", 1000000000, "--inject", "slow:0:300", "--listen", "10.77.0.1:0" if hosts else "127.0.0.1:0"])
            joiner = there(1, ["join", listening(process), "--threads", 1], "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
            while "first push" not in (line := joiner.stderr.readline()):
                if not line:
                    raise SystemExit("the worker that joins ended")
            time.sleep(max(1, options.tickets * megabytes * (16 / int(way) if hosts else 0.02)))
            process.send_signal(signal.SIGINT)
            code, _, err = finish(process, timeout=600)
            finish(joiner, timeout=600)
            worker = 1
    if code not in (0, 130):
        raise SystemExit(f"exit code {code}: {err}")
    account = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if '"event":"async"' in line][-1]
    its, pushes = account["workers"][worker], account["pushes"]
    return {"pull": (its["waiting_seconds"] + its["moving_seconds"] - its["pushing_seconds"]) / its["pushes"], "push": its["pushing_seconds"] / its["pushes"], "bytes_down": account["bytes_to_workers"] / pushes, "bytes_up": account["bytes_to_server"] / pushes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("megabytes", "0.1,1,10,50"), ("compress", "none,int8"), ("ways", "memory,messages")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--tickets", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for megabytes in map(float, options.megabytes.split(",")):
        found, copies = {}, []
        for _ in range(options.rounds):
            copies.append(copy_seconds(megabytes * 1e6))
            for way in options.ways.split(","):
                for compress in options.compress.split(","):
                    with Folder() as folder:
                        found.setdefault((way, compress), []).append(exchange(options, folder / "run", megabytes, compress, way))
        copy = statistics.median(copies)
        for (way, compress), runs in found.items():
            row = {"megabytes": megabytes, "way": way, "compress": compress, "copy_seconds": copy, **{f"{key}_seconds" if key in ("pull", "push") else key: statistics.median(run[key] for run in runs) for key in runs[0]}}
            print(json.dumps(row) if options.json else f"{megabytes:6.1f} MB  {way:8} {compress:5}  pull {1e3 * row['pull_seconds']:8.2f} ms  push {1e3 * row['push_seconds']:8.2f} ms  both {(row['pull_seconds'] + row['push_seconds']) / copy:6.1f} copies"
                  f"  copy {1e3 * copy:7.2f} ms  {row['bytes_down'] / 1e6:6.2f} MB down, {row['bytes_up'] / 1e6:6.2f} up", flush=True)


if __name__ == "__main__":
    main()

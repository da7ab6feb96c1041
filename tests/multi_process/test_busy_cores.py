"""A training beside a program that keeps a core busy: its threads wait asleep, which it says; not where the environment says how they wait."""
import os
import pathlib
import subprocess
import sys
import time

from support import COHORT, TINY, Folder, check, main

SAYS = "wait for one another asleep"


def said(folder, name, *options, **variables):
    """What a training prints; its variables while it runs are what OpenMP has read; its name there."""
    plain = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "COHORT_THREADS_SLEEP")}
    words = [COHORT, "train", *map(str, TINY), "--steps", "200000", "--run", str(folder / name), *options]
    process = subprocess.Popen(words, env={**plain, **variables}, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (folder / name / "metrics.jsonl").exists():
            check(process.poll() is None and time.monotonic() < deadline, "the training did not begin")
            time.sleep(0.05)
        environment = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
        name = pathlib.Path(f"/proc/{process.pid}/comm").read_text().strip()
    finally:
        process.terminate()
    return environment, process.communicate(timeout=60)[1], name


def test_threads_sleep_beside_a_busy_core():
    threads = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with Folder() as folder:
            environment, err, name = said(folder, "busy", "--threads", str(max(2, threads)))
            check(name == pathlib.Path(COHORT).name, f"top calls it {name}")
            check("OMP_WAIT_POLICY=passive" in environment and err.count(SAYS) == 1, (environment, err))
            environment, err, _ = said(folder, "active", "--threads", "2", OMP_WAIT_POLICY="active")
            check("OMP_WAIT_POLICY=active" in environment and SAYS not in err, err)
            # One line for what is wrong, also where the program has started itself again.
            done = subprocess.run([COHORT, "train", "--lr", "x"], capture_output=True, text=True)
            check(done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(globals())

"""Disks that are full, for a moment or for good: a small tmpfs in a mount namespace of its own. Nothing is torn, nothing saved is lost, one line says what is missing."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

from support import Folder, TINY, check, finish, main, run, run_ok, skip, start, steps_in, wait_for
from test_study import MODEL, QUADRATIC, num_stored, stored, write

SHORT = ["train", *TINY, "--quiet"]
LARGE = ["--model", "fc:hidden=4096"]  # A checkpoint of 2.3 MB.
FULL = "No space left on device"


def on_small_disk(function, kibibytes=12288):
    """Runs a function of this file in a process of its own that sees a tmpfs of that size, at the path in COHORT_SMALL_DISK."""
    with Folder() as folder:
        flags = "-m" if os.geteuid() == 0 else "-Urm"
        mount = f"mount -t tmpfs -o size={kibibytes}k none {folder}"
        tried = subprocess.run(["unshare", flags, "sh", "-c", mount], capture_output=True, text=True)
        if tried.returncode != 0:
            skip(f"no file system can be mounted here: {tried.stderr.strip()}")
        command = [sys.executable, __file__, function.__name__]
        done = subprocess.run(["unshare", flags, "sh", "-c", f'{mount} && exec "$@"', "sh", *command], env={**os.environ, "COHORT_SMALL_DISK": str(folder)}, text=True, capture_output=True)
        print(done.stdout, end="")
        check(done.returncode == 0, done.stdout + done.stderr)


def small_disk():
    return pathlib.Path(os.environ["COHORT_SMALL_DISK"])


def fill(disk, leaving=0):
    """Takes all that is free, to the last page, or all but `leaving` bytes; returns the file that holds it."""
    path = disk / "filler"
    with open(path, "ab", buffering=0) as file:
        if leaving:
            free = os.statvfs(disk)
            file.write(bytes(free.f_bavail * free.f_bsize - leaving))
            return path
        for size in (65536, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return path


def lines_of(run_folder):
    raw = (run_folder / "metrics.jsonl").read_text()
    check(raw.endswith("\n"), f"torn: {raw[-80:]!r}")
    return [json.loads(line) for line in raw.splitlines()]


def steps_of(run_folder):
    return [line["step"] for line in lines_of(run_folder) if line["event"] == "step"]


def check_csv(run_folder):
    raw = (run_folder / "metrics.csv").read_text()
    check(raw.endswith("\n") and all(line.count(",") == 10 for line in raw.splitlines()), raw[-200:])


def check_event_files(run_folder):
    """Every TFRecord whole: a length, its checksum, so many bytes, their checksum."""
    for path in (run_folder / "events").iterdir():
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            at += 16 + int.from_bytes(raw[at:at + 8], "little")
        check(at == len(raw), f"{path} ends in the middle of a record")


def newest_checkpoint(run_folder):
    return max(int(path.name[5:]) for path in (run_folder / "checkpoints").glob("step-?????????"))


def check_goes_on(run_folder, more=5):
    """What is there can be read, and trained on, each step once."""
    run_ok(["report", run_folder])
    run_ok(["checkpoint", "verify", run_folder])
    newest = newest_checkpoint(run_folder)
    run_ok(["train", "--run", run_folder, "--resume", "--steps", newest + more, "--quiet"])
    found = steps_of(run_folder)
    check(found == sorted(set(found)) and found[-1] == newest + more, found)
    check_csv(run_folder)


def disk_for_good():
    disk = small_disk()
    for workers in (1, 2):
        where = disk / str(workers)
        process = start([*SHORT, "--workers", workers, "--steps", 1000000, "--eval-every", 100, "--run", where, "--inject", "slow:0:2"])
        wait_for(lambda: steps_in(where) > 110, "training")
        filler = fill(disk)
        code, _, err = finish(process, timeout=60)
        saved = newest_checkpoint(where)
        check(code == 1 and re.search(rf"error: .*the checkpoint of step \d+ could not be saved, nor the one before it: cannot .*{FULL}; the newest checkpoint is of step {saved}", err), f"{code} {err}")
        # More than 100 steps until the second save that fails: more lines than the page that metrics.jsonl ends in has room for.
        check(re.search(rf"(metrics\.jsonl|metrics\.csv|tfevents\S*): {FULL}; the training goes on", err), err)
        left = [path.name for path in (where / "checkpoints").iterdir() if "tmp" in path.name]
        check(not left, f"half a checkpoint stays: {left}")
        known = steps_of(where)
        check(known == list(range(1, known[-1] + 1)), "whole lines up to where the disk was full")
        check_csv(where)
        check_event_files(where)
        code, _, err = run(["train", "--run", where, "--resume", "--quiet"])
        check(code in (1, 2) and len([line for line in err.splitlines() if "error:" in line]) == 1 and FULL in err, f"a start on a full disk is one line: {code} {err}")
        filler.unlink()
        print(f"  full for good, {workers} workers: step {known[-1]} recorded, checkpoint {saved} kept, exit 1")
        check_goes_on(where)
    filler = fill(disk)
    code, _, err = run([*SHORT, "--steps", 3, "--run", disk / "new"])
    check(code in (1, 2) and FULL in err and len(err.splitlines()) == 1 and not (disk / "new/metrics.jsonl").exists(), f"{code} {err}")


def disk_for_a_moment():
    disk, where = small_disk(), small_disk() / "run"
    process = start([*SHORT, "--steps", 1000000, "--eval-every", 100000, "--run", where, "--inject", "slow:0:3"])
    wait_for(lambda: steps_in(where) > 20, "training")
    filler = fill(disk)
    wait_for(lambda: "metrics.jsonl: " + FULL in read_so_far(process), "a line that does not fit")
    time.sleep(0.3)
    filler.unlink()
    wait_for(lambda: "metrics.jsonl can be written again" in read_so_far(process), "lines again")
    process.send_signal(signal.SIGTERM)
    code, _, rest = finish(process, timeout=60)
    err = process.so_far + rest
    check(code == 130, f"{code} {err}")
    check(err.count("metrics.jsonl: " + FULL) == 1 and re.search(r"metrics.jsonl can be written again; it lacks \d+ lines", err), err)
    missing = sum(line["lines"] for line in lines_of(where) if line["event"] == "missing_lines")
    known = steps_of(where)
    gap = known[-1] - len(known)
    check(gap > 0 and missing >= gap and known == sorted(set(known)), f"{gap} steps without a line, {missing} lines said to be missing")
    check(re.search(rf"is saved, but .*metrics.jsonl lacks {missing} lines", err), err)
    check("of metrics.jsonl could not be written" in (where / "report.html").read_text(), "the report says it")
    check_csv(where)
    check_event_files(where)
    print(f"  full for a moment: {gap} steps without a line, {missing} lines counted as missing, none torn")
    check_goes_on(where)


def disk_when_a_save_is_due():
    """One save in the middle of the training does not fit: a warning, and the next one is made. The last one waits for room."""
    disk, where = small_disk(), small_disk() / "run"
    filler = fill(disk, leaving=1 << 20)
    # Slow, so that there is time to make room before the second save, whatever else the machine does.
    process = start([*SHORT, *LARGE, "--steps", 1000000, "--eval-every", 100, "--run", where, "--inject", "slow:0:5"])
    wait_for(lambda: "could not be saved" in read_so_far(process), "the first save")
    filler.unlink()
    wait_for(lambda: any(line["event"] == "checkpoint" for line in lines_of(where)), "the second save")
    process.send_signal(signal.SIGTERM)
    code, _, rest = finish(process, timeout=100)
    err = process.so_far + rest
    check(code == 130 and "the checkpoint of step 100 could not be saved" in err and "no checkpoint was saved before; the training goes on, and ends if the next one fails too" in err, f"{code} {err}")
    check([line["step"] for line in lines_of(where) if line["event"] in ("checkpoint", "checkpoint_failed")][:2] == [100, 200], "saved as soon as it could be")
    check_goes_on(where)
    shutil.rmtree(where)
    filler = fill(disk, leaving=1 << 20)
    process = start([*SHORT, *LARGE, "--steps", 20, "--checkpoint-every", "end", "--run", where])
    wait_for(lambda: "trying again" in read_so_far(process), "the last save")
    filler.unlink()
    code, _, err = finish(process, timeout=100)
    check(code == 0 and newest_checkpoint(where) == 20, f"{code} {err}")


def read_so_far(process):
    """stderr up to now, without waiting; kept, since it is read once."""
    os.set_blocking(process.stderr.fileno(), False)
    process.so_far = getattr(process, "so_far", "")
    try:
        process.so_far += os.read(process.stderr.fileno(), 1 << 16).decode()
    except BlockingIOError:
        pass
    finally:
        os.set_blocking(process.stderr.fileno(), True)
    return process.so_far


def disk_at_the_end():
    """Nothing was saved before, and the last checkpoint does not fit: for good."""
    disk, where = small_disk(), small_disk() / "run"
    filler = fill(disk, leaving=1 << 20)
    for workers in (1, 2):
        code, _, err = run([*SHORT, *LARGE, "--workers", workers, "--steps", 20, "--checkpoint-every", "end", "--run", where], timeout=100)
        check(code == 1 and re.search(rf"error: .*the checkpoint of step 20 could not be saved, in 5 tries: .*{FULL}; no checkpoint was saved before", err), f"{code} {err}")
        failed = lines_of(where)[-1]
        check(failed["event"] == "failed" and failed["exit_code"] == 1 and FULL in failed["cause"] and FULL in (where / "report.html").read_text(), failed)
        code, _, err = run(["train", "--run", where, "--resume"])
        check(code == 2 and "nothing to go on from" in err, err)
        shutil.rmtree(where)
    filler.unlink()


def disk_of_a_study():
    disk = small_disk()
    spec = write(disk, MODEL, trials=24, steps=6000, censoring="false")
    where = ["study", "run", spec, "--workers", 2, "--quiet", "--out"]
    process = start([*where, disk / "study"])
    wait_for(lambda: (disk / "study" / "study.db").exists() and num_stored(disk / "study") >= 2, "trials")
    filler = fill(disk)
    code, _, err = finish(process, timeout=60)
    check(code == 1 and len(err.splitlines()) == 1 and str(disk) in err and "no space left on" in err.lower(), f"{code} {err}")
    left = stored(disk / "study")
    filler.unlink()
    run_ok([*where, disk / "study"])
    run_ok([*where, disk / "whole"])
    check(stored(disk / "study") == stored(disk / "whole"), "what was stored after the disk was full is something else")
    check(len(left) >= 2 and all(trial in stored(disk / "whole") for trial in left), "what was stored before the disk was full is something else")


def disk_of_a_report():
    """Too small for the page, large enough for some of its tables: all or none, first and again."""
    disk = small_disk()
    spec = write(disk, QUADRATIC, steps=4000)
    run_ok(["study", "run", spec, "--workers", 1, "--quiet", "--out", disk / "study"])
    report = ["study", "report", disk / "study", "--no-times", "--quiet", "--out"]
    run_ok([*report, disk / "good" / "page.html"])
    page, tables = disk / "good" / "page.html", sorted((disk / "good" / "plots").iterdir())
    size = sum(path.stat().st_size for path in [page, *tables])
    whole = [path.read_bytes() for path in [page, *tables]]
    for leaving in (16384, size // 2, page.stat().st_size):
        filler = fill(disk, leaving=leaving)
        for out in (disk / "new" / "page.html", page):
            code, _, err = run([*report, out, "--goal", "val_loss<0.5"])
            check(code == 1 and len(err.splitlines()) == 1 and FULL in err, f"{leaving}: {code} {err}")
        check(not (disk / "new").exists(), f"{leaving}: {sorted((disk / 'new').rglob('*'))}")
        check([path.read_bytes() for path in [page, *sorted((disk / "good" / "plots").iterdir())]] == whole, f"{leaving}: the page of before is not what it was")
        filler.unlink()


def test_full_for_good():
    on_small_disk(disk_for_good)


def test_full_for_a_moment():
    on_small_disk(disk_for_a_moment)


def test_full_when_a_save_is_due():
    on_small_disk(disk_when_a_save_is_due)


def test_full_at_the_end():
    on_small_disk(disk_at_the_end)


def test_full_while_a_study_runs():
    on_small_disk(disk_of_a_study)


def test_full_while_a_study_is_reported():
    on_small_disk(disk_of_a_report)


def test_a_limit_of_file_sizes_is_a_full_disk():
    with Folder() as folder:
        where, limit = folder / "run", 30000
        code, _, err = run([*SHORT, "--steps", 400, "--workers", 2, "--run", where], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        check(code == 0 and "metrics.jsonl: File too large; the training goes on" in err, f"{code} {err}")
        check((where / "metrics.jsonl").stat().st_size <= limit and 0 < len(steps_of(where)) < 400, "as many whole lines as fit")
        check_csv(where)
        check_event_files(where)
        check_goes_on(where)


def test_a_full_stdout_is_said():
    with Folder() as folder, open("/dev/full", "w") as full:
        process = subprocess.run([os.environ["COHORT_BIN"], *map(str, SHORT), "--steps", "20", "--json", "--run", str(folder / "run")], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
        check(process.returncode == 0 and f"cannot write the lines of --json on stdout: {FULL}" in process.stderr and re.search(r"--json on stdout lacks \d+ lines", process.stderr), process.stderr)
        check(steps_of(folder / "run") == list(range(1, 21)), "metrics.jsonl has them")


if __name__ == "__main__":
    main(globals())

"""`cohort plan --find-batch`: what it calls the largest does train and the next does not, the kernel's out-of-memory kill hits a try and is named, bad input is one line."""
import os
import pathlib

from support import Folder, check, main, run, run_ok, skip

WIDE = ["--model", "fc:hidden=64", "--data", "synthetic:3x64x64,samples=16000"]


def find(*arguments, **options):
    line = run_ok(["plan", *arguments, "--find-batch", "--json"], **options)[-1]
    check(line["event"] == "batch" and [one["micro_batch"] for one in line["tried"]] == sorted({one["micro_batch"] for one in line["tried"]}), line)
    return line


def test_the_largest_trains_and_the_next_does_not():
    limit = 40_000_000
    deep = ["--model", "fc:hidden=512,layers=4", "--data", "synthetic:1x8x8,samples=16000"]
    found = find(*deep, "--memory-limit", limit, "--optimizer", "adam")
    largest, fails = found["largest_micro_batch"], min(one["micro_batch"] for one in found["tried"] if not one["fits"])
    check(found["ended_by"] == "memory" and 0 < largest < fails <= largest * 1.04 + 1 and found["limit_bytes"] == limit, found)
    check(0 < found["saturating_micro_batch"] <= largest, found)
    # Four layers keep 512 floats before and after their ReLU.
    check(4 * 4 * 512 < found["bytes_per_sample"] < 4 * 4 * 4 * 512, found)
    with Folder() as folder:
        train = ["train", *deep, "--memory-limit", limit, "--optimizer", "adam", "--lr", "1e-6", "--steps", 3, "--quiet", "--global-batch"]
        run_ok([*train, largest, "--run", folder / "fits"])
        code, _, err = run([*train, 2 * fails, "--run", folder / "fails"])
        check(code == 4 and "memory limit" in err, err)


def test_small_data_end_it():
    found = find("--model", "fc:hidden=8", "--data", "synthetic:1x8x8,samples=100")
    check(found["ended_by"] == "data" and found["largest_micro_batch"] == 90 and all(one["fits"] for one in found["tried"]), found)
    out = run_ok(["plan", "--model", "fc:hidden=8", "--data", "synthetic:1x8x8,samples=100", "--find-batch", "--global-batch", 90])
    check("all 90 samples" in out and out.rstrip().endswith("--global-batch 90"), out)


def memory_group(limit):
    """A control group of its own with this limit, version 1 or 2; None where this machine lets nobody make one."""
    for root, name in ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (pathlib.Path("/sys/fs/cgroup"), "memory.max")):
        group = root / f"cohort-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit))
            return group
        except OSError:
            group.rmdir()
    return None


def test_the_kernels_kill_is_named_and_hits_the_try_alone():
    group = memory_group(600 << 20)
    if group is None:
        skip("no control group with a memory limit can be made here", also_in_ci=True)
    try:
        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()))
        killed = find(*WIDE, "--memory-limit", 20_000_000_000, preexec_fn=enter)
        why = [one["why"] for one in killed["tried"] if not one["fits"]]
        check(killed["ended_by"] == "memory" and why and all("out of memory" in text for text in why) and any("the kernel killed it" in text for text in why), killed)
        seen = find(*WIDE, preexec_fn=enter)  # Without a limit of the user's the group's is seen, and nobody is killed.
        check(seen["limit_bytes"] < 600 << 20 and seen["largest_micro_batch"] > 100, seen)
        check(not any("killed" in one.get("why", "") for one in seen["tried"]), seen)
    finally:
        group.rmdir()


def test_bad_input_is_one_line():
    base = ["plan", "--find-batch", "--model", "fc:hidden=8", "--data", "synthetic:1x8x8,samples=100"]
    for arguments, words, expected in ((["plan", "--find-batch"], "--model and --data", 2), ([*base, "--workers", 2], "--workers would do nothing", 2),
                                       ([*base, "--out", "x.json"], "--out", 2), ([*base, "--layout", "pp=2"], "--layout", 2), ([*base, "--memory-limit", 1000], "not even one sample fits", 3),
                                       (["plan", "--find-batch", "--model", "fx", "--data", "synthetic:1x8x8"], "fx", 2)):
        code, out, err = run(arguments)
        check(code == expected and words in err and len(err.splitlines()) == 1 and not out, f"{arguments}: {code} {err}{out}")


if __name__ == "__main__":
    main(globals())

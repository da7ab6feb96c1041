"""`cohort plan`: what it refuses, before it searches for anything, and that an instance is answered as before. Tables of plans: cohort/plan/explain_test.cpp
with tests/plans/."""
import pathlib
import subprocess

from support import COHORT, Folder, check, main, run, run_ok

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAIN = ROOT / "examples/profiles/chain.json"
BRANCHES = ROOT / "examples/instances/branches.json"


def refused(arguments, words):
    code, out, err = run(["plan", *arguments])
    lines = [line for line in err.splitlines() if line]
    check(code == 2 and not out and len(lines) == 1 and words in lines[0], (arguments, code, out, err))


def test_options_that_contradict_each_other_or_do_nothing_are_refused():
    refused([], "plan: no model given")
    refused(["--profile", CHAIN], "--cluster")
    for option, value in (("--cluster", "x.toml"), ("--profile", CHAIN), ("--out", "x.json"), ("--workers", 3), ("--global-batch", 8)):
        refused(["--instance", BRANCHES, option, value], option)
    refused(["--cluster", "x.toml"], "plan: no model given")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--model", "fc"], "leave --model out")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--context", 32], "--context")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--image-size", 14], "--image-size")
    refused(["--cluster", ROOT / "clusters/cpu-host.toml", "--model", "cnn", "--data", "synthetic:1x8x8", "--image-size", 4], "write the size in synthetic:CxHxW")
    refused(["--cluster", ROOT / "clusters/cpu-host.toml", "--model", "lstm", "--image-size", 4], "--image-size")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--data", "synthetic:1x8x8"], "--data")


def test_places_that_cannot_be_written_are_refused_before_the_search():
    with Folder() as folder:
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", folder / "none" / "plan.json"], "none")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--report", folder], str(folder))
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", folder / "x", "--report", folder / "x"], "same file")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", CHAIN], "would be written over --profile")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", "/dev/full"], "it is a device")
        check(not list(folder.iterdir()), list(folder.iterdir()))


def test_keys_that_leave_no_layout_are_named():
    base = ["--cluster", ROOT / "clusters/cpu-host.toml", "--profile", CHAIN, "--global-batch", 64]
    for layout, words in (
        ("zero=3,dp=1", "zero=3 divides between replicas"),
        ("pp=2,split=99", "split=99 names the first layer"),
        ("pp=2,split=3/4", "split=3/4 names the first layer"),
        ("pp=2,schedule=interleaved:99", "makes 198 stages"),
        ("pp=2,microbatches=65", "65 pieces"),
        ("pp=1,schedule=gpipe", "schedule is for several stages"),
    ):
        refused([*base, "--layout", layout], words)
    refused([*base, "--accumulate", 65], "65 pieces")
    refused([*base[:-1], "auto"], "--global-batch auto")
    for options, words in (
        (["--bucket-bytes", 1000, "--workers", 1], "--bucket-bytes would do nothing"),
        (["--weights", "private", "--layout", "dp=1"], "--weights would do nothing"),
        (["--weights", "private", "--layout", "zero=1"], "zero=1 divides them"),
        (["--compress", "--layout", "pp=2"], "pp=2 exchanges them as they are"),
        (["--compress", "--layout", "compress=none"], "compress=none keeps them"),
    ):
        refused([*base, *options], words)


def test_a_steps_curve_is_read_row_by_row():
    with Folder() as folder:
        file = folder / "curve.csv"
        base = ["--cluster", ROOT / "clusters/cpu-host.toml", "--profile", CHAIN, "--objective", "time-to-goal", "--steps-curve", file]
        for row, words in (
            ("64.5,100", "curve.csv:3: batch_size is '64.5'"),
            ("1e30,100", "curve.csv:3: batch_size"),
            ("2000000000,100", "curve.csv:3: batch_size"),
            ("32,100", "curve.csv:3: batch_size is '32', expected a value that is in no earlier row"),
            ("64,0.001", "curve.csv:3: steps"),
            ("64,1e300", "curve.csv:3: steps"),
            ("64," + "9" * 100000 + "x", "curve.csv:3: steps"),
        ):
            file.write_text("batch_size,steps\n32,200\n" + row + "\n")
            refused(base, words)
            check(len(run(["plan", *base])[2]) < 2500, "a line that nobody can read")


def test_an_answer_that_is_lost_is_no_success():
    with open("/dev/full", "w") as full:
        result = subprocess.run([COHORT, "plan", "--instance", str(BRANCHES)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    check(result.returncode == 1 and "cannot write standard output: No space left" in result.stderr, (result.returncode, result.stderr))


def test_an_instance_is_answered_in_one_line():
    lines = run_ok(["plan", "--instance", BRANCHES, "--json"])
    check(len(lines) == 1 and lines[0]["event"] == "plan", lines)
    check(list(lines[0]) == ["event", "objective_seconds", "lower_bound_seconds", "bound_by", "optimal", "search_seconds", "stages"], lines[0])


if __name__ == "__main__":
    main(globals())

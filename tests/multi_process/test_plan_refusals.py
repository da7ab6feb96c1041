"""`cohort plan`: what it refuses, before it searches for anything, and that an instance is answered as before. Tables of plans: cohort/plan/explain/explain_test.cpp
with tests/plans/."""
import pathlib

from support import Folder, check, main, run, run_ok

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAIN = ROOT / "examples/profiles/chain.json"
BRANCHES = ROOT / "examples/instances/branches.json"


def refused(arguments, words):
    code, out, err = run(["plan", *arguments])
    lines = [line for line in err.splitlines() if line]
    check(code == 2 and not out and len(lines) == 1 and words in lines[0], (arguments, code, out, err))


def test_options_that_contradict_each_other_or_do_nothing_are_refused():
    refused([], "--cluster")
    refused(["--profile", CHAIN], "--cluster")
    for option, value in (("--cluster", "x.toml"), ("--profile", CHAIN), ("--out", "x.json"), ("--workers", 3), ("--global-batch", 8)):
        refused(["--instance", BRANCHES, option, value], option)
    refused(["--cluster", "x.toml"], "which model")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--model", "fc"], "leave --model out")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--context", 32], "--context")
    refused(["--cluster", "x.toml", "--profile", CHAIN, "--data", "synthetic:1x8x8"], "--data")


def test_places_that_cannot_be_written_are_refused_before_the_search():
    with Folder() as folder:
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", folder / "none" / "plan.json"], "none")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--report", folder], str(folder))
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", folder / "x", "--report", folder / "x"], "same file")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", CHAIN], "would be written over --profile")
        refused(["--cluster", "x.toml", "--profile", CHAIN, "--out", "/dev/full"], "it is a device")
        check(not list(folder.iterdir()), list(folder.iterdir()))


def test_an_instance_is_answered_in_one_line():
    lines = run_ok(["plan", "--instance", BRANCHES, "--json"])
    check(len(lines) == 1 and lines[0]["event"] == "plan", lines)
    check(list(lines[0]) == ["event", "objective_seconds", "lower_bound_seconds", "bound_by", "optimal", "search_seconds", "stages"], lines[0])


if __name__ == "__main__":
    main(globals())

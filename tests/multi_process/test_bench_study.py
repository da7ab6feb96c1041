"""`cohort bench study`: a line for each batch size, both ways of training in it; PyTorch beside where it is installed."""
from support import check, main, run, run_ok


def test_each_batch_size_has_a_line():
    lines = run_ok(["bench", "study", "--batch", "8,32", "--steps", 20, "--rounds", 1, "--peers", "none", "--json"])
    check([line["batch"] for line in lines] == [8, 32], lines)
    for line in lines:
        check(line["workload"] == "study" and line["steps"] == 20 and 0 < line["val_error"] < 1, line)
        check(all(line[key] > 0 for key in ("trials_per_core_hour", "autograd_trials_per_core_hour")), line)


def test_what_it_refuses():
    for arguments, text in ((["--batch", "0"], "--batch 0"), (["--batch", "many"], "--batch many")):
        code, out, err = run(["bench", "study", *arguments])
        check(code == 2 and text in err and not out, f"{arguments}: exit code {code}: {err}")


if __name__ == "__main__":
    main(globals())

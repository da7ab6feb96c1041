"""`cohort bench study`: a line for each batch size, both ways of training in it; PyTorch beside where it is installed, and left out where it hangs."""
import os
import re

from support import Folder, check, main, run, run_ok


def test_each_batch_size_has_a_line():
    lines = run_ok(["bench", "study", "--batch", "8,32", "--steps", 20, "--rounds", 1, "--peers", "none", "--json"])
    check([line["batch"] for line in lines] == [8, 32], lines)
    for line in lines:
        check(line["workload"] == "study" and line["steps"] == 20 and 0 < line["val_error"] < 1, line)
        check(all(line[key] > 0 for key in ("trials_per_core_hour", "autograd_trials_per_core_hour")), line)


def test_a_peer_that_hangs_or_is_not_there_is_left_out():
    with Folder() as folder:
        (folder / "study.py").write_text("")
        given = ["bench", "study", "--batch", 8, "--steps", 5, "--rounds", 1, "--peers", folder, "--python", "/bin/false"]
        for exit_code, why in ((124, r"did not end within 6\d s"), (137, r"did not end within 6\d s"), (1, "did not run with /bin/false")):
            (folder / "timeout").write_text(f"#!/bin/sh\ntest \"$4\" = /bin/false && exit {exit_code}\n")
            (folder / "timeout").chmod(0o755)
            code, out, err = run(given, env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"))
            check(code == 0 and re.search(f"the PyTorch loop {why}; it is left out", err) and "by autograd" in out, f"{code}: {out}{err}")


def test_what_it_refuses():
    for arguments, text in ((["--batch", "0"], "--batch 0"), (["--batch", "many"], "--batch many")):
        code, out, err = run(["bench", "study", *arguments])
        check(code == 2 and text in err and not out, f"{arguments}: exit code {code}: {err}")


if __name__ == "__main__":
    main(globals())

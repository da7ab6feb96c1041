"""cohort bench sync: the same numbers each time, every mode and condition a cell, the sentences held against them, what is refused."""
import os
import signal

from support import Folder, check, finish, main, run, run_ok, start, wait_for

SHORT = ["bench", "sync", "--workload", "fc", "--seeds", 1, "--json"]


def lines_of(*more):
    return run_ok([*SHORT, "--steps", 24, *more])


def test_cells_and_sentences():
    lines = lines_of()
    cells = [line for line in lines if line["event"] == "cell"]
    check(len(cells) == 4 * 7 and {cell["condition"] for cell in cells} == {"even", "slow", "pauses", "link"}, f"{len(cells)} cells")
    by = {(cell["condition"], cell["sync"], cell["remedy"]): cell for cell in cells}
    check(by["slow", "async", ""]["samples_per_second"] > 2 * by["slow", "step", ""]["samples_per_second"], "who waits is as slow as the slowest")
    check(by["even", "step", ""]["staleness_tail"] == 0 < by["even", "async", ""]["staleness_tail"], "staleness")
    check(by["link", "step", ""]["samples_per_second"] < by["link", "local:4", ""]["samples_per_second"], "local steps send less")
    check(all(cell["val_loss"] > 0 for cell in cells), "losses")
    sentences = [line for line in lines if line["event"] == "sentence"]
    check(len(sentences) == 8 and all(0 <= line["holds"] <= line["of"] and line["of"] > 0 for line in sentences), f"{sentences}")
    check(next(line for line in sentences if "more samples a second" in line["sentence"])["holds"] >= 1, f"{sentences}")
    again = lines_of("--modes", "async", "--conditions", "slow")
    coded = lines_of("--modes", "async/int8,async/int8+rate:0.5", "--conditions", "link")
    check([(cell["sync"], cell["compress"], cell["remedy"]) for cell in coded[:2]] == [("async", "int8", ""), ("async", "int8", "rate:0.5")], f"{coded}")
    check(coded[0]["samples_per_second"] > by["link", "async", ""]["samples_per_second"], f"compressed pushes take as long: {coded[0]}")
    check(again[0] == by["slow", "async", ""], f"other numbers the second time: {again[0]}")


def test_what_is_refused():
    for arguments, words in ((["--modes", "step,asink"], "did you mean"), (["--modes", "async:1"], "is none of"), (["--modes", "step,step"], "twice"), (["--modes", "async+rat:1"], "rate"), (["--modes", "queue/int8"], "use sync=async"), (["--modes", "async/int9"], "did you mean"), (["--modes", "async/"], "no such compression"), (["--modes", "step+rate:0.5"], "--remedy"), (["--conditions", "evn"], "did you mean"), (["--conditions", "even,evne"], "did you mean"),
                             (["--workers", 1], "none to wait for"), (["--rounds", 2], "rounds"), (["--steps", 7, "--modes", "local:4"], "--steps 7")):
        code, out, err = run([*SHORT, "--conditions", "even", *arguments] if "--conditions" not in arguments else [*SHORT, *arguments])
        check(code == 2 and words in err and err.count("\n") == 1 and not out, f"{arguments}: {code} {out}{err}")


def test_ctrl_c_leaves_nothing():
    with Folder() as folder:
        process = start(["bench", "sync", "--workload", "fc"], env={**os.environ, "TMPDIR": str(folder)})
        wait_for(lambda: any(folder.glob("cohort-bench-sync-*/run/metrics.jsonl")), "a training")
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130 and "interrupted" in err and err.count("\n") == 1, f"{code} {err}")
        check(not list(folder.iterdir()), "a folder is left")


if __name__ == "__main__":
    main(globals())

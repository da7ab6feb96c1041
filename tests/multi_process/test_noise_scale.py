"""train --noise-scale: the same training bit by bit, the same numbers in every layout, through a resume, and in the report."""
import json
import math

from support import TINY, Folder, check, exported, largest_difference, main, run, run_ok

STEPS = ["--steps", 12, "--quiet", "--json"]
NORMS = ("small_batch", "large_batch", "small_squared", "large_squared")
LAYOUTS = {
    "one copy": ["--workers", 2],
    "private": ["--workers", 2, "--weights", "private"],
    "zero 2, uneven": ["--workers", 2, "--layout", "dp=2,zero=2", "--shares", "3:1"],
    "zero 3, accumulating": ["--workers", 2, "--layout", "dp=2,zero=3", "--accumulate", 3],
    "int8": ["--workers", 2, "--layout", "dp=2,compress=int8"],
    "clipped": ["--workers", 2, "--clip-norm", 0.1],
    "fp16": ["--workers", 2, "--precision", "fp16"],
    "bf16, zero 3": ["--workers", 2, "--precision", "bf16", "--layout", "dp=2,zero=3", "--accumulate", 2],
    "alone": ["--workers", 1, "--accumulate", 2],
}


def noise(lines):
    return [line for line in lines if line["event"] == "noise_scale"]


def test_the_training_does_not_change():
    for name, options in LAYOUTS.items():
        with Folder() as folder:
            run_ok(["train", *TINY, *STEPS, *options, "--run", folder / "plain"])
            lines = run_ok(["train", *TINY, *STEPS, *options, "--noise-scale", 3, "--run", folder / "measured"])
            check([line["step"] for line in noise(lines)] == [3, 6, 9, 12], f"{name}: {noise(lines)}")
            (folder / "a").mkdir(), (folder / "b").mkdir()
            difference = largest_difference(exported(folder / "plain", folder / "a"), exported(folder / "measured", folder / "b"))
            check(difference == 0, f"{name}: weights differ by {difference} with and without --noise-scale")
            check("Gradient noise scale" in (folder / "measured" / "report.html").read_text(), f"{name}: no section in the report")
            check("Gradient noise scale" not in (folder / "plain" / "report.html").read_text(), f"{name}: a section without a measurement")


def test_layouts_agree():
    """The pieces of two workers and of two micro-steps are not the same samples, but the first step's whole gradient is."""
    first = {}
    for name in ("one copy", "private", "zero 2, uneven", "zero 3, accumulating", "int8", "alone"):
        with Folder() as folder:
            lines = noise(run_ok(["train", *TINY, "--steps", 1, "--quiet", "--json", *LAYOUTS[name], "--noise-scale", 1, "--run", folder / "run"]))
            check(len(lines) == 1, f"{name}: {lines}")
            first[name] = lines[0]
    for name, line in first.items():
        check(line["large_batch"] == 32 and math.isclose(line["large_squared"], first["one copy"]["large_squared"], rel_tol=1e-4), f"{name}: {line}")
    for a, b in (("one copy", "private"), ("one copy", "int8"), ("one copy", "alone")):
        for key in NORMS:
            check(math.isclose(first[a][key], first[b][key], rel_tol=1e-4), f"{key}: {a} {first[a]}, {b} {first[b]}")
    check(first["zero 2, uneven"]["small_batch"] == 16 and abs(first["zero 3, accumulating"]["small_batch"] - 32 / 6) < 1e-5, f"{first}")
    by_hand = first["one copy"]
    trace = (by_hand["small_squared"] - by_hand["large_squared"]) / (1 / 16 - 1 / 32)
    check(math.isclose(by_hand["trace"], trace, rel_tol=1e-9), f"{by_hand}")


def test_half_precision_measures_the_same():
    """Norms are of gradients as they reach the weights, whose type is fp32: what is rounded to bf16 on the way moves a norm by less than its steps of 2^-8 (fp16: 2^-11,
    without the loss scale), the noise scale, made from a difference of two, by several times as much."""
    for layout in (["--workers", 2], ["--workers", 2, "--layout", "dp=2,zero=2"], ["--workers", 1, "--accumulate", 2]):
        lines = {}
        for precision in ("fp32", "bf16", "fp16"):
            with Folder() as folder:
                lines[precision] = noise(run_ok(["train", *TINY, "--steps", 3, "--quiet", "--json", *layout, "--precision", precision, "--noise-scale", 1, "--run", folder / "run"]))
        for precision, squares, scale in (("bf16", 2 * 2**-8 * 2, 0.1), ("fp16", 2 * 2**-11 * 2, 0.0125)):
            for exact, rounded in zip(lines["fp32"], lines[precision]):
                for key in ("small_squared", "large_squared"):
                    check(math.isclose(exact[key], rounded[key], rel_tol=squares), f"{layout} {precision} {key}: {exact} {rounded}")
                check(math.isclose(exact["noise_scale"], rounded["noise_scale"], rel_tol=scale), f"{layout} {precision}: {exact} {rounded}")
            check(len(lines[precision]) == 3 and lines[precision] != lines["fp32"], f"{precision} changed nothing")


def test_averages_survive_a_resume():
    with Folder() as folder:
        options = ["train", *TINY, "--workers", 2, "--quiet", "--json", "--noise-scale", 2]
        whole = noise(run_ok([*options, "--steps", 12, "--run", folder / "whole"]))
        run_ok([*options, "--steps", 6, "--run", folder / "parts"])
        rest = noise(run_ok([*options, "--steps", 12, "--run", folder / "parts", "--resume"]))
        check([line["step"] for line in rest] == [8, 10, 12], f"{rest}")
        check(rest == whole[3:], f"{rest}\n{whole[3:]}")
        recorded = [json.loads(line) for line in (folder / "parts" / "metrics.jsonl").read_text().splitlines()]
        check(noise(recorded) == whole, f"{noise(recorded)}")
        done = [line for line in recorded if line["event"] == "done"][-1]
        check(done["noise_scale"] == whole[-1]["noise_scale"], f"{done}")


def test_refused_where_there_is_one_batch_size():
    for options, advice in ((["--workers", 1], "--accumulate 2"), (["--workers", 2, "--layout", "pp=2"], "dp alone")):
        with Folder() as folder:
            code, _, err = run(["train", *TINY, "--steps", 2, *options, "--noise-scale", 1, "--run", folder / "run"])
            check(code == 2 and advice in err and err.count("error:") == 1, f"{options}: {code}\n{err}")
            check(not (folder / "run").exists(), "a refused run left its folder")


if __name__ == "__main__":
    main(globals())

"""Archives that are larger than what the program may hold of them: made by bench/large_archive.py, read with a bound on memory."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

from support import COHORT, Folder, check, main, run, run_ok

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 2**20


def make(folder, *options):
    done = subprocess.run([sys.executable, ROOT / "bench/large_archive.py", "--out", folder, *map(str, options)], capture_output=True, text=True, env=dict(os.environ, COHORT_BIN=str(COHORT)))
    check(done.returncode == 0, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_memory_does_not_grow_with_the_measurements():
    # The same workloads, batch sizes and trials, with 40 times the measurements: 80 bytes each were 46 MB more.
    with Folder() as folder:
        only = ["--only", "fashion_mnist/simple_cnn_base", "--trials", 60, "--measure", "--json"]
        small, large = make(folder / "small", "--rows", 15_000, *only), make(folder / "large", "--rows", 600_000, *only)
        check([one["action"] for one in large] == ["import", "report", "fit"], large)
        for before, after in zip(small, large):
            check(after["rows"] > 30 * before["rows"] and after["rows"] > 500_000, (before, after))
            grown = after["peak_bytes"] - before["peak_bytes"]
            check(grown < 24 * MIB, f"{after['action']}: {grown / MIB:.1f} MiB more for {after['rows'] - before['rows']} measurements more")


def test_import_of_an_archive_into_a_study_keeps_everything():
    with Folder() as folder:
        for name in ("archive", "elsewhere"):
            make(folder / name, "--rows", 20_000, "--only", "cifar_10/resnet_8/sgd", "--trials", 6)
        files = {name: {path.relative_to(folder / name): path.read_bytes() for path in (folder / name).rglob("*") if path.is_file()} for name in ("archive", "elsewhere")}
        check(files["archive"] == files["elsewhere"], "one seed, two archives: the numbers hang on the folder's name")
        run_ok(["study", "import", folder / "archive", "--out", folder / "study"])
        run_ok(["study", "export", folder / "study", "--out", folder / "again"])
        before, after = (run_ok(["study", "import", root, "--json"]) for root in (folder / "archive", folder / "again"))
        check(before == after and len(before) == 13, f"{before}\n{after}")


def test_goals_of_figure_2_and_the_batch_size_of_shares():
    with Folder() as folder:
        make(folder / "archive", "--rows", 20_000, "--only", "cifar_10/resnet_8", "--trials", 8)
        run_ok(["study", "report", folder / "archive", "--goal", "val_error<0.3", "--goals", "val_error<0.4, val_error<0.001", "--reference-batch", "16", "--out", folder / "page/report.html"])
        plots = folder / "page/plots"
        lines = (plots / "fig2_goals.csv").read_text()
        check("val_error<0.4," in lines and "val_error<0.3," in lines and "val_error<0.5," not in lines, lines)
        check("Relative to batch size 16," in (plots / "fig4_optimizers.csv").read_text(), "relative to another batch size")
        page = (folder / "page/report.html").read_text()
        check("No trial of any batch size reached val_error&lt;0.001." in page, "a goal is missing without a word")
        for options, said in ((["--goals", "val_loss<1"], "val_loss<1 stands beside val_error<0.3"), (["--goal", "val_error<0.3", "--goals", "val_loss<1"], "give goals on val_error")):
            code, _, error = run(["study", "report", folder / "archive", "--out", folder / "page/report.html", *options])
            check(code == 2 and said in error and len(error.strip().splitlines()) == 1, error)
        shutil.rmtree(folder / "archive/cifar_10/resnet_8/sgd/16")
        run_ok(["study", "report", folder / "archive", "--goal", "val_error<0.3", "--reference-batch", "16", "--out", folder / "page/report.html"])
        check("Not every curve has a point at batch size 16." in (folder / "page/report.html").read_text(), "no word on another batch size")
        code, _, error = run(["study", "report", folder / "archive", "--goal", "val_error<0.3", "--reference-batch", "17", "--out", folder / "page/report.html"])
        check(code == 2 and "--reference-batch 17 was not measured as a batch size; there are 2 4 8 16 " in error, error)


if __name__ == "__main__":
    main(globals())

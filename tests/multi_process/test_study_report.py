"""The report of a batch-size study by the real program: page, CSVs and lines, from a store and from its archive; what a browser makes of it."""
import csv
import html.parser
import json
import os
import random
import shutil
import subprocess

from support import Folder, check, main, run, run_ok, skip

SPEC = """
[workload]
name = "tiny"
data = "noisy-quadratic:dimensions=50"
optimizer = "sgd"

[study]
goals = ["val_loss<0.6"]
batch_sizes = [1, 4, 16, 64]
trials = 8
steps = 4000
seed = 3

[search]
learning_rate = { type = "double", scale = "log", min = 0.003, max = 1.9 }
"""


def make_study(folder):
    (folder / "tiny.toml").write_text(SPEC)
    run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "a", "--workers", "1", "--quiet"])
    return folder / "a"


class Page(html.parser.HTMLParser):
    """Sections, marks and what the page would load."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.num_marks, self.loads, self.scripts = [], 0, [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.sections += [attributes.get("id")] if tag == "section" else []
        self.num_marks += tag == "use" and "x" in attributes and attributes["x"].endswith("%")
        self.scripts += tag == "script"
        self.loads += [attributes[name] for name in ("src", "href") if attributes.get(name, "").startswith(("http", "//"))]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_store_and_archive_give_the_same_points():
    with Folder() as folder:
        study = make_study(folder)
        lines = run_ok(["study", "report", study, "--json", "--quiet"])
        check([line["event"] for line in lines] == ["regimes", "report"], lines)
        check(lines[0]["goal"] == "val_loss<0.6", lines)
        page = Page((study / "report.html").read_text())
        check(page.scripts == 1 and not page.loads, page.loads)
        for section in ("summary", "fig1_steps", "checks", "steps", "fig8_parameters", "fig9_scatter_steps", "fig11_budgets", "data"):
            check(section in page.sections, (section, page.sections))
        points = [row for row in rows_of(study / "plots" / "fig1_steps.csv") if row[1].startswith("measured")]
        check(len(points) == 4, points)
        check(page.num_marks > 4 * 8, page.num_marks)
        run_ok(["study", "export", study, "--out", folder / "archive"])
        # Goals are not part of an archive.
        run_ok(["study", "report", folder / "archive", "--goal", "val_loss<0.6", "--out", folder / "again" / "page.html"])
        again = [row for row in rows_of(folder / "again" / "plots" / "fig1_steps.csv") if row[1].startswith("measured")]
        check([row[2:4] for row in again] == [row[2:4] for row in points], (points, again))


def test_the_test_split_is_measured_at_the_best_validation():
    with Folder() as folder:
        draw = random.Random(1)
        for name, count in (("rows", 300), ("test", 100)):
            rows = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(count)]
            (folder / f"{name}.csv").write_text("a,b,c,d,kind\n" + "".join(f"{a},{b},{c},{d},{'up' if a + b * c + draw.gauss(0, 0.5) > 0 else 'down'}\n" for a, b, c, d in rows))
        spec = SPEC.replace("noisy-quadratic:dimensions=50", f"csv:{folder}/rows.csv,target=kind,test={folder}/test.csv").replace('"sgd"', '"sgd"\nmodel = "fc:hidden=8,layers=1"').replace("val_loss<0.6", "val_error<0.3").replace("[1, 4, 16, 64]", "[4, 16, 64]")
        spec = spec.replace("steps = 4000", "steps = 60").replace("[search]", "[censoring]\nenabled = false\n[search]")
        (folder / "s.toml").write_text(spec)

        def into(name):
            return ["study", "run", folder / "s.toml", "--out", folder / name, "--workers", "2", "--quiet"]
        run_ok(into("without"))
        (folder / "s.toml").write_text(spec.replace("trials = 8", "trials = 8\nevaluate_test = true"))
        run_ok(into("study"))
        code, _, err = run(into("without"))
        check(code == 2 and "evaluate_test was false and is true" in err, err)
        run_ok(["study", "export", folder / "study", "--out", folder / "archive"])
        measured = [row for file in (folder / "archive").rglob("*.csv") if "step" in (rows := rows_of(file))[0] for row in [dict(zip(rows[0], row)) for row in rows[1:]]]
        tested = [row for row in measured if row.get("test/classification_error")]
        check(0 < len(tested) < len(measured), f"{len(tested)} of {len(measured)}")
        for place, page in ((folder / "study", folder / "study" / "report.html"), (folder / "archive", folder / "again" / "page.html")):
            run_ok(["study", "report", place, "--goal", "val_error<0.3", "--no-times", "--quiet", "--out", page])
            figure = [dict(zip(rows_of(page.parent / "plots" / "fig11_budgets.csv")[0], row)) for row in rows_of(page.parent / "plots" / "fig11_budgets.csv")[1:]]
            drawn = [row for row in figure if row["panel"] == "test_error at the best val_error within a number of steps"]
            check(drawn and all(row["y"] == row["test_error"] and 0 < float(row["y"]) < 1 for row in drawn), figure)
            check(len({row["panel"] for row in figure}) >= 2 and any(row["test_error"] != row["val_error"] for row in drawn), figure)
        run_ok(["study", "report", folder / "without", "--no-times", "--quiet"])
        check("test_error" not in (folder / "without" / "plots" / "fig11_budgets.csv").read_text(), "a test split that nobody measured is drawn")
        # Data without one.
        (folder / "s.toml").write_text(spec.replace("trials = 8", "trials = 8\nevaluate_test = true").replace(f",test={folder}/test.csv", ""))
        code, _, err = run(into("none"))
        check(code == 2 and "has no test samples; leave evaluate_test out" in err and err.count("\n") == 1 and not (folder / "none").exists(), err)


def test_goals_of_figure_2_stand_beside_the_specs_own():
    with Folder() as folder:
        study = make_study(folder)
        for _ in range(2):  # The second over the page of the first.
            run_ok(["study", "report", study, "--no-times", "--quiet", "--goals", "val_loss<0.7,val_loss<0.65", "--reference-batch", "4"])
        goals = {row["goal"] for row in csv.DictReader(open(study / "plots" / "fig2_goals.csv", newline=""))}
        check(goals >= {"val_loss<0.6", "val_loss<0.65", "val_loss<0.7"} and len(goals - {""}) == 3, goals)


def test_several_studies_are_laid_over_each_other():
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "b", "--seed", "4", "--workers", "1", "--quiet"])
        out = run_ok(["study", "report", study, folder / "b", "--out", folder / "both.html"])
        check(out.splitlines()[-1] == str(folder / "both.html"), out)
        check("fig1_repeats" in Page((folder / "both.html").read_text()).sections, "no figure of repeated studies")
        check(not (study / "report.html").exists(), "--out was not followed")


def test_every_study_of_several_has_its_figures():
    """Two that differ in their seed, and one that differs from both in model and optimizer: no one drops out."""
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "b", "--seed", "4", "--workers", "1", "--quiet"])
        (folder / "other.toml").write_text(SPEC.replace("dimensions=50", "dimensions=40").replace('"sgd"', '"momentum"\nmodel_name = "small"') + "momentum = { value = 0.9 }\n")
        run_ok(["study", "run", folder / "other.toml", "--out", folder / "c", "--workers", "1", "--quiet"])
        lines = run_ok(["study", "report", study, folder / "b", folder / "c", "--no-times", "--json", "--out", folder / "out" / "page.html"])
        check([line["study"] for line in lines if line["event"] == "regimes"] == [str(study), str(folder / "b"), str(folder / "c")], lines)
        sections = Page((folder / "out" / "page.html").read_text()).sections
        for figure in ("fig1_steps", "fig2_goals", "fig8_parameters", "fig9_scatter_steps", "fig11_budgets"):
            for name in (figure, f"{figure}-2-b", f"{figure}-3-c"):
                check(name in sections and (folder / "out" / "plots" / f"{name}.csv").exists(), (name, sections))
        check({"fig1_repeats", "fig3_studies", "fig10_scatter_studies"} < set(sections), sections)
        curves = {row["series"] for row in csv.DictReader(open(folder / "out" / "plots" / "fig3_studies.csv", newline=""))} - {"ideal"}
        check(len(curves) == 3, curves)


def test_no_table_of_a_plot_has_a_column_twice():
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "b", "--seed", "4", "--workers", "1", "--quiet"])
        run_ok(["study", "report", study, folder / "b", "--no-times", "--quiet"])
        tables = list((study / "plots").glob("*.csv"))
        check(len(tables) > 10, tables)
        for table in tables:
            columns = rows_of(table)[0]
            check(len(set(columns)) == len(columns), (table.name, columns))


def test_the_warning_of_halving_stands_in_every_result():
    with Folder() as folder:
        (folder / "tiny.toml").write_text(SPEC)
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "a", "--workers", "1", "--quiet", "--halving"])
        out = run_ok(["study", "report", folder / "a", "--no-times", "--quiet"])
        check(out.startswith("warning: successive halving is biased"), out)
        check("biased" in (folder / "a" / "report.html").read_text(), "the page does not say so")
        lines = run_ok(["study", "report", folder / "a", "--no-times", "--json"])
        check(lines[0]["event"] == "warning" and "biased" in lines[0]["text"], lines)
        out = run_ok(["study", "fit", folder / "a"])
        check(out.startswith("warning: successive halving is biased"), out)
        out = run_ok(["study", "export", folder / "a", "--out", folder / "archive"])
        check(out.startswith("warning: successive halving is biased"), out)
        lines = run_ok(["study", "export", folder / "a", "--out", folder / "archive2", "--json"])
        check(lines[0]["event"] == "warning" and "biased" in lines[0]["text"], lines)
        # It goes with the archive, and with what is made of that.
        run_ok(["study", "import", folder / "archive", "--out", folder / "imported", "--json"])
        for place in (folder / "archive", folder / "imported"):
            for action in (["report", place, "--no-times", "--quiet", "--out", folder / "page.html"], ["fit", place]):
                out = run_ok(["study", *action])
                check(out.startswith("warning: successive halving is biased"), (action, out))
            check("biased" in (folder / "page.html").read_text(), "the page does not say so")
        check(run_ok(["study", "import", folder / "archive"]).startswith("warning: successive halving is biased"), "import does not say so")
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "b", "--workers", "1", "--quiet"])
        check("biased" not in run_ok(["study", "report", folder / "b", "--no-times", "--quiet"]), "a study without halving is warned of")


def test_a_goal_on_what_was_never_measured_is_refused():
    with Folder() as folder:
        study = make_study(folder)
        for action in ("report", "fit"):
            code, out, err = run(["study", action, study, "--goal", "val_error<0.1"])
            check(code == 2 and "this study does not measure val_error; measured: val_loss" in err, (action, code, out, err))


def run_beside_read_only(folder, arguments, **options):
    """The program where `folder` is mounted read-only, which stops root too; skipped where no name space can be made."""
    if not shutil.which("unshare"):
        skip("no unshare here")
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 77; exec "$@"']
    process = subprocess.run([*words, str(folder), os.environ["COHORT_BIN"], *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if process.returncode == 77 or "unshare" in process.stderr:
        skip(f"no read-only mount here: {process.stderr.strip()}")
    return process.returncode, process.stdout, process.stderr


def test_a_read_only_study_is_reported_elsewhere():
    with Folder() as folder:
        study = make_study(folder)
        before = sorted(path.name for path in study.iterdir())
        page = folder / "out" / "page.html"
        code, out, err = run_beside_read_only(study, ["study", "report", study, "--no-times", "--json", "--out", page])
        check(code == 0, (code, out, err))
        check((folder / "out" / "steps_curve.csv").exists() and json.loads(out.splitlines()[-1])["steps_curve"] == str(folder / "out" / "steps_curve.csv"), out)
        check(f"{study} is not writable" in err and str(folder / "out") in err, err)
        check(sorted(path.name for path in study.iterdir()) == before, "the study's folder changed")
        for arguments in (["report", study, "--no-times"], ["run", folder / "tiny.toml", "--out", study, "--workers", "1", "--quiet"],
                          ["export", study, "--out", study / "archive"], ["run", folder / "tiny.toml", "--out", study / "new", "--workers", "1"]):
            code, out, err = run_beside_read_only(study, ["study", *arguments])
            check(code == 2 and "Read-only file system" in err and len(err.strip().splitlines()) == 1, (arguments, code, out, err))


def test_a_place_that_can_not_be_written_is_bad_input_everywhere():
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "export", study, "--out", folder / "archive"])
        (folder / "file").write_text("")
        for arguments in (["run", folder / "tiny.toml", "--workers", "1", "--out", folder / "file"], ["run", folder / "tiny.toml", "--workers", "1", "--out", folder / "file" / "a"],
                          ["export", study, "--out", folder / "file"], ["export", study, "--out", folder / "file" / "a"],
                          ["import", folder / "archive", "--out", folder / "file"], ["report", study, "--no-times", "--out", folder / "file" / "page.html"]):
            code, out, err = run(["study", *arguments])
            check(code == 2 and "Not a directory" in err and len(err.strip().splitlines()) == 1, (arguments, code, out, err))


def test_what_can_not_be_reported_is_one_sentence():
    with Folder() as folder:
        for arguments, words in (([], "give a study's folder"), ([folder], "neither a study"), ([folder, "--goal", "speed<1"], "speed")):
            code, out, err = run(["study", "report", *arguments])
            check(code == 2 and words in err, (code, out, err))
        study = make_study(folder)
        (folder / "precious.txt").write_text("mine")
        os.mkfifo(folder / "pipe")
        before = sorted(study.iterdir())
        for arguments, words in ((["--out", folder], "is a folder"), (["--out", folder / "precious.txt"], "precious.txt is there and is not a report, so it is not written over"),
                                 (["--out", folder / "pipe"], "it is a pipe"), (["--reference-batch", "5"], "--reference-batch 5 was not measured as a batch size; there are 1 4 16 64"),
                                 (["--budget-steps", "5,5"], "--budget-steps: 5 is given twice"),
                                 (["--goals", "val_loss<0.5,val_loss<0.50"], "--goals names val_loss<0.5 twice"), (["--goals", "val_error<0.5"], "val_error<0.5 stands beside val_loss<0.6 in one plot")):
            code, out, err = run(["study", "report", study, "--no-times", *arguments])
            check(code == 2 and words in err and len(err.strip().splitlines()) == 1, (arguments, code, err))
        check((folder / "precious.txt").read_text() == "mine" and sorted(study.iterdir()) == before, sorted(study.iterdir()))
        for workers in ("0", "99999", "two"):  # Also where nothing is measured.
            code, out, err = run(["study", "report", study, "--no-times", "--workers", workers])
            check(code == 2 and "--workers" in err and not (study / "report.html").exists(), (workers, code, err))


def test_a_browser_draws_it():
    """With the script a mark takes the focus and its words show; the page fits a phone."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        skip("no chromium here")
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "report", study, "--quiet"])
        text = (study / "report.html").read_text()
        probe = ("<script>const mark = document.querySelector('.plot use.mark'); mark.focus(); document.title = "
                 "document.querySelector('.readout').textContent + '|wide ' + (document.documentElement.scrollWidth > innerWidth);</script></body>")
        (folder / "probe.html").write_text(text.replace("</body>", probe))
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", f"--user-data-dir={folder}/profile", "--dump-dom",
                   f"file://{folder}/probe.html"]
        dump = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        title = dump.partition("<title>")[2].partition("</title>")[0]
        check("batch size: 1" in title and "learning_rate: " in title, title)
        check(title.endswith("|wide false"), title)


if __name__ == "__main__":
    main(globals())

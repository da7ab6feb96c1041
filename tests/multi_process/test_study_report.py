"""The report of a batch-size study by the real program: page, CSVs and lines, from a store and from its archive; what a browser makes of it."""
import csv
import html.parser
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


def test_several_studies_are_laid_over_each_other():
    with Folder() as folder:
        study = make_study(folder)
        run_ok(["study", "run", folder / "tiny.toml", "--out", folder / "b", "--seed", "4", "--workers", "1", "--quiet"])
        out = run_ok(["study", "report", study, folder / "b", "--out", folder / "both.html"])
        check(out.splitlines()[-1] == str(folder / "both.html"), out)
        check("fig1_repeats" in Page((folder / "both.html").read_text()).sections, "no figure of repeated studies")
        check(not (study / "report.html").exists(), "--out was not followed")


def test_what_can_not_be_reported_is_one_sentence():
    with Folder() as folder:
        for arguments, words in (([], "give a study's folder"), ([folder], "neither a study"), ([folder, "--goal", "speed<1"], "speed")):
            code, out, err = run(["study", "report", *arguments])
            check(code == 2 and words in err, (code, out, err))
        study = make_study(folder)
        code, out, err = run(["study", "report", study, "--out", folder])
        check(code == 2 and "is a folder" in err, (code, err))


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

#!/usr/bin/env python3
"""Tables and pictures of docs/lab/evidence.md and docs/lab/evidence_gallery.md, from the raw data: what `cohort study fit` and `cohort study report` say of each archive of studies/evidence/raw (or of those that are named).

    bench/evidence.py [ARCHIVE.tar.xz ...] [--goal GOAL]     steps, laws and regimes of each study; nothing is trained
    bench/evidence.py --rules [ARCHIVE.tar.xz ...]           the best effective learning rate beside the linear and the square-root rule
    bench/evidence.py --pictures FOLDER                      every picture of the gallery

An archive FAMILY-OPTIMIZER[-WHAT].tar.xz holds one workload in the layout of docs/formats/study_archive.md. Steps are those of the study's first goal, or of --goal.
"""
import argparse
import collections
import csv
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("COHORT_BIN", HERE / "build/release/bin/cohort")
OPTIMIZERS = ("sgd", "momentum", "nesterov")
COLOURS = ("#2f6fb0", "#c4621d", "#3a8a3f", "#7a4fa3", "#b02f6f", "#7b6a16", "#3a8bbd", "#5c4033")

Curve = collections.namedtuple("Curve", "name points bars drawn", defaults=((), "line"))  # points: [(x, y)], bars: [(x, low, high)], drawn: line, points or rule


# ---- What the program says ----

class Archives:
    """Unpacked, each into a folder of its own."""

    def __init__(self, paths):
        self.kept = tempfile.TemporaryDirectory()
        self.workloads, self.fits = {}, {}
        for path in paths:
            name = path.name.removesuffix(".tar.xz")
            root = pathlib.Path(self.kept.name) / name
            with tarfile.open(path) as packed:
                packed.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Python 3.11.2 of Debian 12 has none.
            found = sorted({file.parent.parent for file in root.rglob("study.json")})
            if len(found) != 1:
                sys.exit(f"{path}: expected one workload, found {len(found)}")
            self.workloads[name] = found[0]

    def fit(self, name, goal=None):
        if (name, goal) not in self.fits:
            self.fits[name, goal] = said(["study", "fit", self.workloads[name], *(["--goal", goal] if goal else [])])
        return self.fits[name, goal]

    def minutes(self, name):
        """Wall time of two workers: half of what its trials took, each for itself. None of an archive that does not say it, such as the authors'."""
        seconds = [json.loads(path.read_text()).get("cohort_seconds") for path in self.workloads[name].rglob("metadata.json")]
        return None if None in seconds else sum(seconds) / 120

    def plot(self, names, plot, *options):
        """The rows of a plot of a report on these studies; [] where the report has no such plot."""
        with tempfile.TemporaryDirectory() as folder:
            said(["study", "report", *(self.workloads[name] for name in names), "--no-times", "--out", f"{folder}/report.html", *options])
            file = pathlib.Path(folder) / "plots" / f"{plot}.csv"
            return list(csv.DictReader(file.open())) if file.exists() else []

    def best_trials(self, name):
        """A row a batch size."""
        return [row for row in self.plot([name], "fig8_parameters") if row["series"] == "best trial" and row["panel"] == "Best learning rate"]


def said(words):
    done = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def points_of(text):
    return [(int(m[1]), int(m[2])) for m in re.finditer(r"^ +(\d+) +(\d+) .* of \d+ +\d+$", text, re.M)]


def bars_of(text):
    return [(int(m[1]), int(m[2]), float(m[3])) for m in re.finditer(r"^ +(\d+) +\d+ +(\d+) to (\d+) .* of \d+ +\d+$", text, re.M)]


def hyperbola_of(text):
    """(Smin, critical batch size), or None where none was fitted."""
    law = re.search(r"^hyperbola +.*?smin = ([0-9.e+]+) \(.*?bc = ([0-9.e+]+)", text, re.M | re.I)
    return (float(law[1]), float(law[2])) if law else None


# ---- Tables ----

def row_of(name, text, minutes):
    points = points_of(text)
    counted = sum(int(m) for m in re.findall(r" of (\d+) +\d+$", text, re.M))
    law = re.search(r"^hyperbola +(\S+) +(\S+ to \S+|-) .*?smin = ([0-9.e+]+ \(.*?\))", text, re.M | re.I)
    perfect = re.search(r"^  perfect scaling to (\S+?)(, the largest.*?)?( \(95 %: (.*?)\))?$", text, re.M)
    flat = re.search(r"^  no further gain(?: from (\S+)|: (not reached).*?)( \(95 %: (.*?)\))?$", text, re.M)
    goal = re.search(r", to (\S+)$", text.splitlines()[0])
    looks = len(re.findall(r"^  \S+ \((?:look|refused)\):", text, re.M))

    def end(found, first):
        return "none named" if not found else f"{first} ({found[4]})" if found[4] else first

    return [name, goal[1] if goal else "", f"{points[0][1]:,} at {points[0][0]}, {points[-1][1]:,} at {points[-1][0]}" if points else "", str(counted), "" if minutes is None else f"{minutes:.0f}", law[3] if law else "", f"{law[1]} ({law[2]})" if law else "",
            end(perfect, perfect[1]) if perfect else "none named", end(flat, flat[1] or flat[2]) if flat else "none named", str(looks)]


def print_table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def best_rates(archives, name):
    """[(batch size, the best trial's learning rate / (1 - momentum), steps)]"""
    return sorted((int(row["batch size"]), float(row["learning_rate"]) / (1 - float(row.get("momentum") or 0)), int(row["steps"])) for row in archives.best_trials(name))


def power_of(rates):
    """The exponent e of rate ~ B^e by least squares on logarithms; 1 is the linear rule, 0.5 the square-root one."""
    xs, ys = [math.log(b) for b, _, _ in rates], [math.log(rate) for _, rate, _ in rates]
    return statistics.linear_regression(xs, ys).slope if len(rates) > 1 else math.nan


def rules_row(archives, name):
    rates = best_rates(archives, name)
    fit = hyperbola_of(archives.fit(name))
    below = [each for each in rates if fit and each[0] <= fit[1]]
    smallest, largest = rates[0], rates[-1]
    growth = largest[0] / smallest[0]
    return [name, f"{smallest[1]:.3g} at {smallest[0]}", f"{largest[1]:.3g} at {largest[0]}", f"{smallest[1] * growth:.3g}", f"{smallest[1] * math.sqrt(growth):.3g}", f"{power_of(rates):.2f}", f"{power_of(below):.2f}" if len(below) > 2 else ""]


# ---- Pictures ----

def ticks(low, high):
    """Of a logarithmic axis: powers of two, or where there are few of them 1, 1.5, 2, 3, 5, 7 times powers of ten."""
    if high / low >= 12:
        first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
        return [2.0**power for power in range(first, last + 1, max(1, (last - first) // 10))]
    every = [digit * 10.0**power for power in range(-6, 8) for digit in (1, 1.5, 2, 3, 5, 7)]
    return [max(tick for tick in every if tick <= low), *(tick for tick in every if low < tick < high), min(tick for tick in every if tick >= high)]


def number(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def picture(title, curves, axes=("batch size", "steps"), ideal=False, law=None):
    """Both axes logarithmic. `ideal`: dashed, twice the batch and half the steps, from the first curve's first point; `law`: a dashed function of x."""
    left, top, width, height = 76, 24, 540, 330
    every = [point for curve in curves for point in curve.points]
    grid = [ticks(min(p[axis] for p in every), max(p[axis] for p in every)) for axis in (0, 1)]
    share = lambda axis, value: (math.log(value) - math.log(grid[axis][0])) / (math.log(grid[axis][-1]) - math.log(grid[axis][0]))
    x_of = lambda x: left + share(0, x) * width
    y_of = lambda y: top + height - min(1.0, max(0.0, share(1, y))) * height
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 420" width="800" height="420" font-family="sans-serif" font-size="12" role="img">', f"<title>{title}</title>", '<rect width="800" height="420" fill="#ffffff"/>']
    for x in grid[0]:
        out.append(f'<line x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{top}" y2="{top + height}" stroke="#e4e4e4"/><text x="{x_of(x):.1f}" y="{top + height + 16}" text-anchor="middle">{number(x)}</text>')
    for y in grid[1]:
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" stroke="#e4e4e4"/><text x="{left - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{number(y)}</text>')
    if ideal:
        batch, steps = curves[0].points[0]
        law = lambda x: batch * steps / x
    if law:
        first, last = max(grid[0][0], min(p[0] for p in every)), grid[0][-1]
        along = [(x, law(x)) for x in (first * (last / first)**(i / 60) for i in range(61))]
        inside = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in along if grid[1][0] <= y <= grid[1][-1])
        out.append(f'<polyline points="{inside}" fill="none" stroke="#777777" stroke-dasharray="5 4"/>')
    for i, curve in enumerate(curves):
        colour = "#777777" if curve.drawn == "rule" else COLOURS[i % len(COLOURS)]
        if curve.drawn != "points":
            style = 'stroke-dasharray="2 4"' if curve.drawn == "rule" else 'stroke-width="2"'
            out.append(f'<polyline points="{" ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve.points)}" fill="none" stroke="{colour}" {style}/>')
        out += [f'<line x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{y_of(low):.1f}" y2="{y_of(high):.1f}" stroke="{colour}" stroke-opacity="0.5"/>' for x, low, high in curve.bars]
        if curve.drawn != "rule":
            out += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.2" fill="{colour}"/>' for x, y in curve.points]
        x, y, anchor = (left + width - 6, y_of(curve.points[-1][1]) - 8, "end") if curve.drawn == "rule" else (left + width + 12, top + 14 + 18 * i, "start")
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{curve.name}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">{axes[0]}</text><text x="8" y="14">{axes[1]}</text></svg>')
    return "\n".join(out) + "\n"


def steps_curve(archives, name, label, goal=None):
    text = archives.fit(name, goal)
    return Curve(label, points_of(text), bars_of(text))


def draw_families(archives, put):
    families = sorted({name.split("-")[0] for name in archives.workloads})
    fronts = []
    for family in families:
        names = {optimizer: f"{family}-{optimizer}" for optimizer in OPTIMIZERS if f"{family}-{optimizer}" in archives.workloads}
        put(f"steps_{family}", picture(f"{family}: steps to the goal against the batch size", [steps_curve(archives, name, optimizer) for optimizer, name in names.items()], ideal=True))
        rates = {optimizer: [(b, rate) for b, rate, _ in best_rates(archives, name)] for optimizer, name in names.items()}
        first = min((curve[0] for curve in rates.values() if curve), key=lambda point: point[1])
        rules = [Curve("linear rule", [(b, first[1] * b / first[0]) for b, _ in rates[next(iter(rates))]], drawn="rule"), Curve("square-root rule", [(b, first[1] * math.sqrt(b / first[0])) for b, _ in rates[next(iter(rates))]], drawn="rule")]
        put(f"rate_{family}", picture(f"{family}: learning rate / (1 - momentum) of the best trial against the batch size", [*(Curve(optimizer, curve) for optimizer, curve in rates.items()), *rules], axes=("batch size", "learning rate / (1 - momentum)")))
        front = []
        for name in names.values():
            text = archives.fit(name)
            law = hyperbola_of(text)
            front += [(b * s / (law[0] * law[1]), s / law[0]) for b, s in points_of(text)] if law else []
        fronts.append(Curve(family, sorted(front), drawn="points"))
    put("front", picture("Steps over Smin against samples over Emin, all studies", fronts, axes=("samples to the goal / Emin", "steps / Smin"), law=lambda x: 1 + 1 / (x - 1) if x > 1.001 else math.inf))


def draw_questions(archives, put):
    """What moves the ends, asked of the fully connected network with plain SGD; a picture is left out where its studies are not all there."""
    for file, title, goal, studies in (("width", "Width of a fully connected network", "val_error<0.17", {"fc-sgd-width_16": "16 wide", "fc-sgd": "32 wide", "fc-sgd-width_128": "128 wide"}),
                                       ("depth", "Depth of a fully connected network", "val_error<0.17", {"fc-sgd-depth_1": "1 hidden layer", "fc-sgd": "2 hidden layers", "fc-sgd-depth_4": "4 hidden layers"}),
                                       ("data_size", "Number of training samples", "val_error<0.19", {"fc-sgd-samples_5000": "5,000 samples", "fc-sgd-samples_17000": "17,000 samples", "fc-sgd": "all"}),
                                       ("average", "Evaluated with an average of the weights", "val_error<0.17", {"fc-sgd": "the weights", "fc-sgd-average": "their average"})):
        if studies.keys() <= archives.workloads.keys():
            put(file, picture(f"{title}: steps to {goal.replace('<', ' below ')}", [steps_curve(archives, name, label, goal) for name, label in studies.items()], ideal=True))
    if "fc-sgd-training" in archives.workloads:
        put("training_goals", picture("Goals on validation and on training samples", [steps_curve(archives, "fc-sgd-training", goal.replace("<", " below "), goal) for goal in ("val_error<0.17", "train_error<0.16", "train_loss<0.45")], ideal=True))
    if "fc-sgd-smoothing" in archives.workloads:
        rows = archives.plot(["fc-sgd-smoothing"], "fig7_label_smoothing")
        by_value = collections.defaultdict(list)
        for row in rows:
            if row["panel"].startswith("Steps"):
                by_value[row["series"]].append((float(row["x"]), float(row["y"])))
        put("smoothing", picture("Label smoothing: steps to the goal", [Curve(name, sorted(points)) for name, points in by_value.items()], ideal=True))
    if "fc-nesterov" in archives.workloads:
        rows = archives.plot(["fc-nesterov"], "fig11_budgets", "--budget-steps", "60,120,240", "--budget-epochs", "0.25,0.5,1")
        for kind in ("steps", "epochs"):
            by_value = collections.defaultdict(list)
            for row in rows:
                if row["panel"].endswith(f"number of {kind}"):
                    by_value[row["series"]].append((float(row["x"]), float(row["y"])))
            put(f"budget_{kind}", picture(f"Best validation error within a budget of {kind}", [Curve(name, sorted(points)) for name, points in by_value.items()], axes=("batch size", "validation error")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=pathlib.Path)
    parser.add_argument("--goal")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--pictures", type=pathlib.Path)
    options = parser.parse_args()
    archives = Archives(options.archives or sorted((HERE / "studies/evidence/raw").glob("*.tar.xz")))
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
        put = lambda name, svg: (options.pictures / f"{name}.svg").write_text(svg)
        draw_families(archives, put)
        draw_questions(archives, put)
    elif options.rules:
        print_table(["study", "best effective rate at the smallest batch", "at the largest", "linear rule says", "square-root rule says", "exponent over all batches", "exponent up to the critical batch"], [rules_row(archives, name) for name in archives.workloads])
    else:
        print_table(["study", "goal", "steps", "trials", "minutes", "Smin", "critical batch size", "perfect scaling to", "no further gain from", "remarks of the checks"], [row_of(name, archives.fit(name, options.goal), archives.minutes(name)) for name in archives.workloads])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The table of docs/lab/evidence.md, from the raw data: for each study of studies/evidence/raw/*.tar.xz (or of the archives that are named) what `cohort study fit` says of it.

    bench/evidence.py [ARCHIVE.tar.xz ...] [--goal GOAL] [--picture FILE.svg]

An archive holds one workload in the layout of docs/formats/study_archive.md. Nothing is trained. Steps are those of the study's first goal, or of --goal. --picture draws them against the batch size, a line a study, dashed the
line of twice the batch and half the steps from the first point.
"""
import argparse
import math
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = HERE / "build/release/bin/cohort"


def fitted(archive, goal):
    """What the program prints of one study."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        command = [str(PROGRAM), "study", "fit", folder] + (["--goal", goal] if goal else [])
        workloads = sorted({path.parent.parent for path in pathlib.Path(folder).rglob("study.json")})
        command[3] = str(workloads[0])
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def points_of(text):
    return [(int(m[1]), int(m[2])) for m in re.finditer(r"^ +(\d+) +(\d+) .* of \d+ +\d+$", text, re.M)]


def picture(curves):
    """Batch size and steps, both by powers of two."""
    colours, left, top, width, height = ("#2f6fb0", "#c4621d", "#3a8a3f", "#7a4fa3", "#555555", "#b02f6f"), 70, 20, 560, 330
    every = [point for _, points in curves for point in points]
    x_range, y_range = ([math.floor(math.log2(min(p[axis] for p in every))), math.ceil(math.log2(max(p[axis] for p in every)))] for axis in (0, 1))
    x_of = lambda batch: left + (math.log2(batch) - x_range[0]) / (x_range[1] - x_range[0]) * width
    y_of = lambda steps: top + height - (math.log2(steps) - y_range[0]) / (y_range[1] - y_range[0]) * height
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 410" width="800" height="410" font-family="sans-serif" font-size="12" role="img">', "<title>Steps to the goal against the batch size</title>",
             '<rect width="800" height="410" fill="#ffffff"/>']
    for power in range(x_range[0], x_range[1] + 1):
        parts.append(f'<line x1="{x_of(2**power):.1f}" x2="{x_of(2**power):.1f}" y1="{top}" y2="{top + height}" stroke="#e4e4e4"/><text x="{x_of(2**power):.1f}" y="{top + height + 16}" text-anchor="middle">{2**power:,}</text>')
    for power in range(y_range[0], y_range[1] + 1):
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y_of(2**power):.1f}" y2="{y_of(2**power):.1f}" stroke="#e4e4e4"/><text x="{left - 6}" y="{y_of(2**power) + 4:.1f}" text-anchor="end">{2**power:,}</text>')
    batch, steps = curves[0][1][0]
    last = min(curves[0][1][-1][0], batch * steps / 2**y_range[0])
    parts.append(f'<line x1="{x_of(batch):.1f}" y1="{y_of(steps):.1f}" x2="{x_of(last):.1f}" y2="{y_of(batch * steps / last):.1f}" stroke="#777777" stroke-dasharray="5 4"/>')
    for number, (name, points) in enumerate(curves):
        colour = colours[number % len(colours)]
        line = " ".join(f"{x_of(b):.1f},{y_of(s):.1f}" for b, s in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(b):.1f}" cy="{y_of(s):.1f}" r="3.5" fill="{colour}"/>' for b, s in points]
        parts.append(f'<text x="{left + width + 12}" y="{top + 14 + 18 * number}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">batch size</text><text x="{left}" y="13" text-anchor="middle">steps</text></svg>')
    return "\n".join(parts) + "\n"


def row_of(name, text):
    points = points_of(text)
    counted = sum(int(m) for m in re.findall(r" of (\d+) +\d+$", text, re.M))
    law = re.search(r"^hyperbola +(\S+) +(\S+ to \S+|-) .*?smin = ([0-9.e+]+ \(.*?\))", text, re.M | re.I)
    perfect = re.search(r"perfect scaling to (\S+?)(, the largest.*?)?( \(95 %: (.*?)\))?$", text, re.M)
    flat = re.search(r"no further gain(?: from (\S+)|: (not reached).*?)( \(95 %: (.*?)\))?$", text, re.M)
    goal = re.search(r", to (\S+)$", text.splitlines()[0])
    looks = len(re.findall(r"^  \S+ \((?:look|refused)\):", text, re.M))

    def end(found, first):
        return "none named" if not found else f"{first} ({found[4]})" if found[4] else first

    return [name, goal[1] if goal else "", f"{points[0][1]:,} at {points[0][0]}, {points[-1][1]:,} at {points[-1][0]}" if points else "", str(counted), law[3] if law else "", f"{law[1]} ({law[2]})" if law else "",
            end(perfect, perfect[1]) if perfect else "none named", end(flat, flat[1] or flat[2]) if flat else "none named", str(looks)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=pathlib.Path)
    parser.add_argument("--goal")
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    archives = options.archives or sorted((HERE / "studies/evidence/raw").glob("*.tar.xz"))
    texts = {path.name.removesuffix(".tar.xz"): fitted(path, options.goal) for path in archives}
    rows = [row_of(name, text) for name, text in texts.items()]
    if options.picture:
        options.picture.write_text(picture([(name, points_of(text)) for name, text in texts.items()]))
    print("| study | goal | steps | trials | Smin | critical batch size | perfect scaling to | no further gain from | remarks of the checks |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

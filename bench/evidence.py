#!/usr/bin/env python3
"""The table of docs/lab/evidence.md, from the raw data: for each study of studies/evidence/raw/*.tar.xz (or of the archives that are named) what `cohort study fit` says of it.

    bench/evidence.py [ARCHIVE.tar.xz ...] [--goal GOAL]

An archive holds one workload in the layout of docs/formats/study_archive.md. Nothing is trained. Steps are those of the study's first goal, or of --goal.
"""
import argparse
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


def row_of(name, text):
    points = [(int(m[1]), int(m[2])) for m in re.finditer(r"^ +(\d+) +(\d+) .* of \d+ +\d+$", text, re.M)]
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
    options = parser.parse_args()
    archives = options.archives or sorted((HERE / "studies/evidence/raw").glob("*.tar.xz"))
    rows = [row_of(path.name.removesuffix(".tar.xz"), fitted(path, options.goal)) for path in archives]
    print("| study | goal | steps | trials | Smin | critical batch size | perfect scaling to | no further gain from | remarks of the checks |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

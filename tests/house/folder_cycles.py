#!/usr/bin/env python3
"""Folders of cohort/ and bench/program/ that include each other in a circle, at any depth: for each pair of neighbours in one, `FILE: includes INCLUDED, ...`; nothing where there is none.

    folder_cycles.py [CHECKOUT]
A folder is its own files, not those of folders in it. Unit tests may include upwards. The main.cpp files are above all folders, cohort.h and its like are in one of their own."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
includes = {}  # folder: {folder: (file, included)}
for path in sorted([*root.glob("cohort/**/*"), *root.glob("bench/program/**/*")]):
    if path.suffix not in (".h", ".cpp") or path.name.endswith("_test.cpp") or path.name == "main.cpp":
        continue
    folder = path.parent.relative_to(root)
    for included in re.findall(r'^#include "((?:cohort|bench)/[^"]+)"', path.read_text(), re.M):
        other = pathlib.Path(included).parent
        if other != folder and (root / included).exists():
            includes.setdefault(folder, {}).setdefault(other, (path.relative_to(root), included))


def reach(start):
    found, rest = set(), [start]
    while rest:
        for other in includes.get(rest.pop(), {}):
            if other not in found:
                found.add(other)
                rest.append(other)
    return found


below = {folder: reach(folder) for folder in includes}
for folder in includes:
    for other, (path, included) in includes[folder].items():
        if folder in below.get(other, ()):
            print(f"{path}: includes {included}, and {other} includes {folder}, itself or by others")

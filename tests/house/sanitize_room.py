#!/usr/bin/env python3
"""Writes a folder in which ninja and ctest run the tests of one room, or of one turn of all, under AddressSanitizer and UndefinedBehaviorSanitizer.

    sanitize_room.py BUILD FOLDER ROOM|TURN      ROOM: a folder below cohort/, as comm or comm/shm, or bench/program; TURN: a number

Compiled for it are only the units (cmake/FilesTogether.cmake) that hold the files, and their tests; everything else is linked as BUILD has it. Units, not
files: a unit's object is replaced as a whole, so that nothing is there twice. TURN takes as many units as a commit has time for."""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

build, folder = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
wanted = sys.argv[3]
root = pathlib.Path(__file__).resolve().parents[2]
# At -O0 GCC takes half as long for sanitized code as at -O1.
flags = "-O0 -g1 -fsanitize=address,undefined -fno-omit-frame-pointer"
target_of_tests = {"cohort_core": "cohort_core_tests", "cohort_torch": "cohort_test_objects", "cohort_bench": "cohort_test_objects"}


def tests_of(target):
    """(object, path) of the tests of a target; those of benchmarks are compiled with those of the rooms below it."""
    return [(output, path) for output, paths in units[target_of_tests[target]].items() for path in paths if path.startswith("bench/") == (target == "cohort_bench")]


def nearest(path, others):
    return max(sorted(others), key=lambda other: len(os.path.commonprefix([path.replace("_test.cpp", ".cpp"), other.replace("_test.cpp", ".cpp")])))


# What the compiler compiles, by target and object.
units = collections.defaultdict(dict)
commands = {}
for entry in json.loads((build / "compile_commands.json").read_text()):
    output = re.search(r" -o (\S+)", entry["command"])[1]
    target, source = re.search(r"CMakeFiles/([\w-]+)\.dir/", output)[1], pathlib.Path(entry["file"])
    if target in (*target_of_tests, *target_of_tests.values()) and source.name not in ("cmake_pch.hxx.cxx", "doctest_main.cpp"):
        sources = re.findall(r'^#include "(.*)"', source.read_text(), re.M) if source.suffix == ".cxx" else [str(source)]
        units[target][output], commands[output] = [str(pathlib.Path(path).relative_to(root)) for path in sources], entry["command"]

# Turns: units with the tests of their files. A test goes where the file is whose path begins as its own; a unit without one borrows the nearest.
turns = []
for target in target_of_tests:
    found = {path: output for output, paths in units[target].items() for path in paths}
    of_unit = collections.defaultdict(list)
    for output, path in tests_of(target):
        of_unit[found[nearest(path, found)]].append((output, path))
    where = {path: output for output, path in tests_of(target)}
    seconds = limit = 70
    for middle, output in sorted((paths[len(paths) // 2], output) for output, paths in units[target].items()):  # Units of one room beside each other.
        if not of_unit[output]:
            of_unit[output] = [(where[nearest(middle, where)], nearest(middle, where))]
        chosen = [(output, path) for path in units[target][output]], of_unit[output]
        size = sum((root / path).stat().st_size for part in chosen for _, path in part)
        cost = size / 8000 + (2 if target == "cohort_core" else 8) * (1 + len({test for test, _ in of_unit[output]}))
        if seconds + cost > limit:
            turns.append((target, [], []))
            seconds = 0
        seconds += cost
        for whole, part in zip(turns[-1][1:], chosen):
            whole.extend(pair for pair in part if pair not in whole)
if wanted.isdigit():
    number = int(wanted) % len(turns)
    target, files, tests = turns[number]
    said = f"turn {number + 1} of {len(turns)}"
else:
    room = wanted.rstrip("/") + "/"
    inside = lambda path: path.startswith(room if room.startswith("bench/") else "cohort/" + room)
    target = next((target for target in target_of_tests if any(inside(path) for paths in units[target].values() for path in paths)), None)
    if not target:
        sys.exit(f"sanitize_room: no room is called {wanted}")
    files = [(output, path) for output, paths in units[target].items() if any(map(inside, paths)) for path in paths]
    tests = [(output, path) for output, path in tests_of(target) if inside(path)]
    said = wanted
if not tests:
    sys.exit(f"sanitize_room: {said} has no tests")

# The folder: build.ninja with these compilations and the link, CTestTestfile.cmake with what ctest knows of these tests.
folder.mkdir(parents=True, exist_ok=True)
text = "rule compile\n command = $said -MD -MF $out.d -o $out -c $in\n description = $out\n depfile = $out.d\n deps = gcc\n"
text += "rule link\n command = $said\n description = $out\n"
header, objects = folder / "torch.h", {}
for output in dict(files + tests):
    mine = folder / (re.sub(r"\W", "_", output) + ".cpp")
    mine_text = "".join(f'#include "{root / path}"\n' for other, path in files + tests if other == output)
    if not mine.exists() or mine.read_text() != mine_text:
        mine.write_text(mine_text)
    objects[output] = str(mine.with_suffix(".o"))
    before, precompiled = re.subn(r" -include \S+cmake_pch.hxx", f" -include {header}", commands[output].split(" -o ")[0])
    if precompiled and not header.exists():
        header.write_text("#include <torch/torch.h>\n")
    if precompiled and f"build {header}.gch:" not in text:
        plain = before.replace(f" -include {header}", "")
        text += f"build {header}.gch: compile {header}\n said = {plain} {flags} -x c++-header\n"
    text += f"build {objects[output]}: compile {mine}{f' | {header}.gch' if precompiled else ''}\n said = {before} {flags}\n"
name = "cohort_core_tests" if target == "cohort_core" else "cohort_tests"
link = subprocess.run(["ninja", "-C", build, "-t", "commands", name], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
rest = {output for output in units[target_of_tests[target]]} - set(objects)
words = [objects.get(word, word) for word in link.replace(f"-o bin/{name}", f"-o {folder / name} -fsanitize=address,undefined").split(" ") if word not in rest]
text += f"build {folder / name}: link {' '.join(objects.values())}\n said = cd {build} && {' '.join(words)}\ndefault {folder / name}\n"
(folder / "build.ninja").write_text(text)
known = (build / "tests/CTestTestfile.cmake").read_text().splitlines()
lines = [at for at, line in enumerate(known) if any(f'"--source-file=*/{path}"' in line for _, path in tests)]
(folder / "CTestTestfile.cmake").write_text("".join(known[at].replace(str(build / "bin"), str(folder)) + "\n" + known[at + 1] + "\n" for at in lines))
print(f"{said}: {', '.join(sorted({path for _, path in files}))}; {len(tests)} tests")

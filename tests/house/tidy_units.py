#!/usr/bin/env python3
"""What clang-tidy is to look at: the compiler's files of the libraries and the program (units of several sources, or sources alone), each ended by a zero byte,
the largest first, so that no core waits for it at the end.

    tidy_units.py compile_commands.json [SOURCE...]      only the units that hold these sources"""
import json
import pathlib
import re
import sys

wanted = {str(pathlib.Path(source).resolve()) for source in sys.argv[2:]}
units = []
for entry in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    if not re.search(r"CMakeFiles/cohort(_core|_program)?\.dir/", entry["output"]):
        continue
    unit = pathlib.Path(entry["directory"], entry["file"])
    if "cmake_pch" in unit.name:
        continue
    sources = re.findall(r'^#include "(.*)"', unit.read_text(), re.M) if unit.suffix == ".cxx" else [str(unit)]
    if not wanted or wanted & {str(pathlib.Path(source).resolve()) for source in sources}:
        torch = not re.search(r"cohort_core\.dir", entry["output"])
        units.append((torch, sum(pathlib.Path(source).stat().st_size for source in sources), str(unit)))
if not units:
    sys.exit("tidy_units: none of these is compiled into the libraries")
sys.stdout.write("".join(f"{unit}\0" for _, _, unit in sorted(units, reverse=True)))

#!/usr/bin/env python3
"""What clang-tidy is to look at: the compiler's files of the libraries and the program (units of several sources, or sources alone), each ended by a zero byte,
the largest first, so that no core waits for it at the end. A build without any unit of a half is an error: the check would pass for ever.

    tidy_units.py compile_commands.json [--core | --rotate TURN | SOURCE...]
--core: those without LibTorch; --rotate: the TURN-th twelfth of these and of the others; SOURCE: the units that hold these sources"""
import json
import pathlib
import re
import sys

core, rotate = sys.argv[2:3] == ["--core"], sys.argv[2:3] == ["--rotate"]
wanted = {str(pathlib.Path(source).resolve()) for source in sys.argv[2:]} if not core and not rotate else set()
units = []
for entry in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    output = entry.get("output") or re.search(r" -o (\S+)", entry["command"])[1]
    if not re.search(rf"CMakeFiles/cohort{'_core' if core else '(_core|_torch|_bench|_program|-bench)'}\.dir/", output):
        continue
    unit = pathlib.Path(entry["directory"], entry["file"])
    if "cmake_pch" in unit.name:
        continue
    sources = re.findall(r'^#include "(.*)"', unit.read_text(), re.M) if unit.suffix == ".cxx" else [str(unit)]
    if not wanted or wanted & {str(pathlib.Path(source).resolve()) for source in sources}:
        torch = "cohort_core.dir" not in output
        units.append((torch, sum(pathlib.Path(source).stat().st_size for source in sources), str(unit)))
if not core and not wanted and not any(torch for torch, _, _ in units):
    sys.exit("tidy_units: no unit with LibTorch is there; are the targets called otherwise now?")
if rotate:
    units = [unit for half in (False, True) for unit in sorted(unit for unit in units if unit[0] == half)[int(sys.argv[3]) % 12::12]]
if not units:
    sys.exit("tidy_units: none of these is compiled into the libraries")
sys.stdout.write("".join(f"{unit}\0" for _, _, unit in sorted(units, reverse=True)))

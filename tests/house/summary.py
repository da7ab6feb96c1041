#!/usr/bin/env python3
"""Says of a run of ctest (--output-junit FILE) what its own lines leave out: why tests were skipped, and which took longest.

    summary.py FILE [--all | --declare]      --all: seconds of every test, longest first, and of each kind; --declare: writes them to tests/seconds.csv"""
import collections
import math
import pathlib
import re
import sys
import xml.etree.ElementTree

cases = list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
seconds = sorted(((float(case.get("time", 0)), case.get("name")) for case in cases), reverse=True)
if "--all" in sys.argv:
    kinds = collections.Counter()
    for time, name in seconds:
        kinds[name.split(".")[0]] += time
        print(f"{time:8.1f}  {name}")
    print(", ".join(f"{kind} {time:.0f} s" for kind, time in kinds.most_common()))
elif "--declare" in sys.argv:
    path = pathlib.Path(__file__).parents[1] / "seconds.csv"
    lines = sorted(f"{name},{math.ceil(time)}" for time, name in seconds if time > 2)  # Others count as two seconds.
    path.write_text("\n".join(["test,seconds", *lines]) + "\n")
    print(f"wrote {path}: {len(lines)} of {len(seconds)} tests take more than two seconds")
else:
    print("longest:", ", ".join(f"{name} {time:.0f} s" for time, name in seconds[:5] if time >= 1))
for case in cases:
    if case.find("skipped") is not None or case.get("status") == "notrun":
        said = case.findtext("system-out") or ""
        reasons = re.findall(r"^skipped: (.*)$", said, re.M)
        print(f"skipped: {case.get('name')}: {'; '.join(reasons) or said.strip()[-200:] or 'no reason given'}")

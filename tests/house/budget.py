#!/usr/bin/env python3
"""Whether the tests fit the time that continuous integration has: what they declare (tests/seconds.csv; two seconds for one that is not listed), times the places that
each takes of the four that two cores have, must not pass BUDGET_SECONDS.

    budget.py BUILD_FOLDER SECONDS.csv"""
import collections
import json
import pathlib
import subprocess
import sys

BUDGET_SECONDS = 2100
PLACES = 4


def main(build, declared):
    tests = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout)["tests"]
    parts = collections.Counter()
    for test in tests:
        properties = {item["name"]: item["value"] for item in test["properties"]}
        parts[test["name"].split(".")[0]] += properties.get("COST", 2) * min(properties.get("PROCESSORS", 1), PLACES) / PLACES
    total = sum(parts.values())
    print(", ".join(f"{part} {seconds / 60:.1f} min" for part, seconds in parts.most_common()) + f"; together {total / 60:.1f} of {BUDGET_SECONDS / 60:.0f} min")
    gone = {line.split(",")[0] for line in pathlib.Path(declared).read_text().splitlines()[1:]} - {test["name"] for test in tests}
    if gone:
        sys.exit(f"{declared} names tests that are not there: {', '.join(sorted(gone))}; take these lines out, or write the file anew with scripts/test --declare")
    if total > BUDGET_SECONDS:
        sys.exit("the tests do not fit their budget: make one quicker, or let fewer of them have the machine alone")


main(*sys.argv[1:])

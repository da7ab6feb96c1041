#!/usr/bin/env python3
"""README's table of step times, from what `cohort bench step --json` prints:  cohort bench step --json | bench/step_table.py"""
import json
import sys

COLUMNS = {"Cohort": ("cohort", "step_seconds"), "no exchange": ("cohort", "floor_seconds"), "PyTorch DDP": ("pytorch-ddp", "step_seconds")}


def told(seconds):
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{3 if milliseconds < 5 else 2 if milliseconds < 100 else 1}f} ms"


def main():
    rows = {}
    for text in sys.stdin:
        try:
            line = json.loads(text)
        except ValueError:
            raise SystemExit(f"step_table.py: not JSON: {text.strip()[:80]!r}; use `cohort bench step --json | bench/step_table.py`")
        if "system" in line:
            rows.setdefault(line["workload"], {})[line["system"]] = line
    if not rows:
        raise SystemExit("step_table.py: no times on standard input; use `cohort bench step --json | bench/step_table.py`")
    print("| workload | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for workload, systems in rows.items():
        print(f"| {workload} | " + " | ".join(told(systems[system][field]) if system in systems else "" for system, field in COLUMNS.values()) + " |")


if __name__ == "__main__":
    main()

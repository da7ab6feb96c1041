#!/usr/bin/env python3
"""Plans public planner instances and prints each beside the best that is known.

  bench/plan_instances.py FOLDER [SOURCE]...   FOLDER/SOURCE/reference.csv names the instances (rows with best_known=yes); FOLDER/check.py judges the plans

Environment: COHORT, the program (default build/release/bin/cohort). Exit 1 where check.py finds a plan infeasible or another objective than the program says.
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

COHORT = os.environ.get("COHORT", "build/release/bin/cohort")
FORMATS = ("dnn-partitioning", "pipedream", "piper", "zero-bubble")


def solve(source, path, options):
    out = subprocess.run([COHORT, "bench", "plan", "--format", source, "--json", *options, str(path)], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip().splitlines()[-1] if out.stderr.strip() else f"exit code {out.returncode}")
    return [json.loads(line) for line in out.stdout.splitlines()]


def judge(folder, source, path, options, answer):
    """What check.py makes of the plan: its objective, and what is wrong"""
    kind = source + ("-latency" if "latency-inputs" in path.parts else "")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as plan:
        json.dump(answer["plan"], plan)
        plan.flush()
        out = subprocess.run([sys.executable, "-B", str(folder / "check.py"), kind, str(path), *options, "--assignment", plan.name], capture_output=True, text=True)
    verdict = json.loads(out.stdout) if out.stdout.startswith("{") else {"wrong": out.stderr.strip()}
    if "wrong" in verdict:
        return None, verdict["wrong"]
    problems = [] if verdict["feasible"] else list(verdict["why"])
    objective = verdict["bubble_of_longest_stage" if source == "zero-bubble" else "objective"]
    if abs(objective - answer["objective"]) > 1e-6 * abs(answer["objective"]):
        problems.append(f"check.py says {objective}")
    return objective, "; ".join(problems)


def answer_to(source, path, row):
    """The answer; of a table, to the row and within the memory that the reference names"""
    options = row["options"].split()
    if source != "zero-bubble":
        return solve(source, path, options)[0]
    number, table = int(options[options.index("--row") + 1]), path.with_name(path.name.split("#")[0])
    with table.open(newline="") as lines:
        stages = int(list(csv.DictReader(lines))[number]["stages"])
    return solve(source, table, ["--memory", str((2 if "memory 2p" in row["how"] else 1) * stages)])[number]


def rows_of(folder, sources):
    for source in sources:
        reference = folder / source / "reference.csv"
        if reference.exists():
            for row in csv.DictReader(reference.open()):
                if row["best_known"] == "yes":
                    yield source, folder / source / row["instance"], row


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    folder, failed = pathlib.Path(words[0]), 0
    print(f"{'instance':58} {'objective':>13} {'best known':>13} {'ratio':>8} {'lower bound':>13} {'gap':>8} {'seconds':>8}")
    for source, path, row in rows_of(folder, words[1:] or FORMATS):
        name, options = " ".join([str(path.relative_to(folder)), row["options"]]).strip(), row["options"].split()
        try:
            answer = answer_to(source, path, row)
        except RuntimeError as error:
            failed += 1
            print(f"{name:58} {error}", flush=True)
            continue
        objective, problem = judge(folder, source, path.with_name(path.name.split("#")[0]), options, answer)
        failed += bool(problem)
        gap = 1 - answer["lower_bound"] / answer["objective"] if answer["objective"] else 0
        print(f"{name:58} {answer['objective']:13.7g} {float(row['value']):13.7g} {answer['objective'] / float(row['value']):8.5f} {answer['lower_bound']:13.7g} "
              f"{100 * gap:6.2f} % {answer['search_seconds']:8.2f}" + (f"  {problem}" if problem else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

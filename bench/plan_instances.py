#!/usr/bin/env python3
"""Plans public planner instances and prints each beside the best that is known.

  bench/plan_instances.py FOLDER [SOURCE]...   FOLDER/SOURCE/reference.csv names the instances (rows with best_known=yes); FOLDER/check.py judges the plans
  bench/plan_instances.py --seeds N FOLDER     the searches that draw, those of dnn-partitioning, with seeds 1 to N: median and worst ratio, and seconds
  bench/plan_instances.py --seeds N --costs K FOLDER    the same for K more of each graph, times and transfers each off by up to a fifth; the ratio is
                                               to the best over the seeds then, as nothing better is known

Environment: COHORT, the program (default build/release/bin/cohort). Exit 1 where check.py finds a plan infeasible or another objective than the program says.
"""
import csv
import json
import os
import pathlib
import random
import statistics
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


def changed(path, draw, into):
    """The same graph with other costs: a node's times by one factor, all transfers of a producer by one"""
    graph = json.loads(path.read_text())
    for node in graph["nodes"]:
        factor = draw.uniform(0.8, 1.2)
        node["fpgaLatency"], node["cpuLatency"] = node["fpgaLatency"] * factor, node["cpuLatency"] * factor
    factors = {}
    for edge in graph["edges"]:
        edge["cost"] *= factors.setdefault(edge["sourceId"], draw.uniform(0.8, 1.2))
    into.mkdir(parents=True)
    (into / path.name).write_text(json.dumps(graph))
    return into / path.name


def over_seeds(folder, num_seeds, num_costs):
    failed = 0
    print(f"{'instance':66} {'best':>11} {'best known':>11} {'median':>8} {'worst':>8} {'gap':>8} {'seconds':>8}")
    with tempfile.TemporaryDirectory() as others:
        for source, path, row in rows_of(folder, ["dnn-partitioning"]):
            options = row["options"].split()
            kinds = [(path, float(row["value"]))] if num_costs == 0 else []
            for number in range(1, num_costs + 1):
                draw = random.Random(f"{path.name} {number}")
                kinds.append((changed(path, draw, pathlib.Path(others) / str(number) / path.relative_to(folder).parent), None))
            for number, (graph, known) in enumerate(kinds, 1):
                answers = [solve(source, graph, [*options, "--search-seed", str(seed)]) for seed in range(1, num_seeds + 1)]
                problems = [problem for answer in answers if (problem := judge(folder, source, graph, options, answer)[1])]
                failed += len(problems)
                found = [answer["objective"] for answer in answers]
                bound = max(answer["lower_bound"] for answer in answers)
                known = known or min(found)
                name = str(path.relative_to(folder)).removeprefix("dnn-partitioning/") + (f" costs {number}" if num_costs else "")
                print(f"{name:66} {min(found):11.6g} {known:11.6g} {statistics.median(found) / known:8.5f} {max(found) / known:8.5f} {100 * (1 - bound / min(found)):6.2f} % "
                      f"{max(answer['search_seconds'] for answer in answers):8.2f}" + "".join(f"  {problem}" for problem in problems[:1]), flush=True)
    return 1 if failed else 0


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    numbers = {"--seeds": 0, "--costs": 0}
    while len(words) > 2 and words[0] in numbers:
        if not words[1].isdecimal() or int(words[1]) < 1:
            print(f"{words[0]} {words[1]}: expected a whole number from 1", file=sys.stderr)
            return 2
        numbers[words[0]], words = int(words[1]), words[2:]
    if numbers["--costs"] and not numbers["--seeds"]:
        print("--costs acts with --seeds alone", file=sys.stderr)
        return 2
    if words[0].startswith("-") or (numbers["--seeds"] and len(words) > 1):
        print(f"expected {'one folder' if numbers['--seeds'] else 'a folder'}, got {' '.join(words)}", file=sys.stderr)
        return 2
    if numbers["--seeds"]:
        return over_seeds(pathlib.Path(words[0]), numbers["--seeds"], numbers["--costs"])
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

"""Plans of least largest load beside the same problem as an integer programme, solved by HiGHS: no line of it is shared with the planner.

The instances are made here, in the format of dnn-partitioning, small enough for a proof. Objective: a device's load is the time of its nodes, and for an accelerator
the transfer of each output that it shares with another device, once; nodes of a colour class are together, and memory of an accelerator is limited.
"""
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "multi_process"))
from support import check, main, run, skip  # noqa: E402

NUM_INSTANCES = 24


def instance(seed):
    draw = random.Random(seed)
    num_nodes = draw.randint(5, 11)
    accelerators, cpus = draw.randint(1, 3), draw.randint(0, 2)
    nodes = []
    for i in range(num_nodes):
        seconds = draw.randint(0, 20)
        nodes.append({"id": i, "fpgaLatency": seconds, "cpuLatency": seconds * draw.randint(1, 6), "size": draw.randint(0, 9), "supportedOnFpga": 1, "isBackwardNode": 0})
    for node in draw.sample(nodes, num_nodes // 2):
        node["colorClass"] = draw.randint(0, num_nodes)
    edges = []
    for i in range(num_nodes - 1):
        readers = [j for j in range(i + 1, num_nodes) if draw.random() < 0.35]
        cost = draw.choice((0, 1, 3, 8))
        edges += [{"sourceId": i, "destId": j, "cost": cost} for j in readers]
    most = sum(node["size"] for node in nodes)
    memory = most if draw.random() < 0.4 else max(1, round(most * draw.uniform(0.3, 0.9)))
    return {"maxFPGAs": accelerators, "maxCPUs": cpus, "maxSizePerFPGA": memory, "nodes": nodes, "edges": edges}


def programme(highspy, made):
    """x[group, device] is 1 where the group runs there; y[node, accelerator] is 1 where its output crosses the border of the accelerator."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    devices = range(made["maxFPGAs"] + made["maxCPUs"])
    accelerators = range(made["maxFPGAs"])
    group_of = {node["id"]: ("class", node["colorClass"]) if "colorClass" in node else ("node", node["id"]) for node in made["nodes"]}
    x = {(group, device): solver.addBinary() for group in sorted(set(group_of.values())) for device in devices}
    largest = solver.addVariable(lb=0)
    for group in set(group_of.values()):
        solver.addConstr(sum(x[group, device] for device in devices) == 1)
    at = lambda node, device: x[group_of[node], device]
    load = {device: sum(node["fpgaLatency" if device in accelerators else "cpuLatency"] * at(node["id"], device) for node in made["nodes"]) for device in devices}
    for device in accelerators:
        solver.addConstr(sum(node["size"] * at(node["id"], device) for node in made["nodes"]) <= made["maxSizePerFPGA"])
        for source in {edge["sourceId"] for edge in made["edges"]}:
            out = [edge for edge in made["edges"] if edge["sourceId"] == source]
            crosses = solver.addVariable(lb=0, ub=1)
            for edge in out:  # Here and not there, or there and not here: once a source and accelerator.
                solver.addConstr(crosses >= at(source, device) - at(edge["destId"], device))
                solver.addConstr(crosses >= at(edge["destId"], device) - at(source, device))
            load[device] = load[device] + out[0]["cost"] * crosses
    for device in devices:
        solver.addConstr(largest >= load[device])
    return solver, largest, list(x.values())


def solved(highspy, made, relaxed=False):
    """The least largest load, or None where no plan fits. `relaxed`: groups may be cut into shares."""
    solver, largest, choices = programme(highspy, made)
    if relaxed:
        for choice in choices:
            solver.changeColIntegrality(choice.index, highspy.HighsVarType.kContinuous)
    solver.minimize(largest)
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    check(status == highspy.HighsModelStatus.kOptimal, f"HiGHS: {status}")
    return solver.getObjectiveValue()


def test_least_largest_load_is_that_of_an_integer_programme():
    try:
        import highspy
    except ImportError as missing:
        skip(f"Python's package highspy is not here: {missing}")
    num_optimal = num_infeasible = num_bounded = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, NUM_INSTANCES + 1):
            made, path = instance(seed), pathlib.Path(folder) / f"{seed}.json"
            path.write_text(json.dumps(made))
            best = solved(highspy, made)
            code, out, err = run(["bench", "plan", "--format", "dnn-partitioning", "--json", path])
            if best is None:
                num_infeasible += 1
                check(code == 3 and not out, f"instance {seed}: HiGHS finds that no plan fits; exit code {code}: {out}{err}")
                continue
            check(code == 0, f"instance {seed}: HiGHS finds {best}; exit code {code}: {err}")
            line, slack = json.loads(out), 1e-6 * max(1, best)
            what = f"instance {seed}: HiGHS {best}, planner {line['objective']}, bound {line['lower_bound']} by {line['bound_by']}, optimal {line['optimal']}"
            check(line["objective"] >= best - slack, what)
            check(line["lower_bound"] <= best + slack, what)
            check(not line["optimal"] or line["objective"] <= best + slack, what)
            check(solved(highspy, made, relaxed=True) <= best + slack, what)  # Of the programme itself: a wrong sign in it would show.
            num_optimal += line["optimal"]
            num_bounded += line["lower_bound"] > 0
    num_feasible = NUM_INSTANCES - num_infeasible
    print(f"{num_feasible} instances, {num_optimal} proved optimal, {num_infeasible} infeasible")
    check(num_optimal >= 0.8 * num_feasible and num_bounded > 0.8 * num_feasible and num_feasible >= 15, f"{num_feasible} {num_optimal} {num_bounded}")


if __name__ == "__main__":
    main(globals())

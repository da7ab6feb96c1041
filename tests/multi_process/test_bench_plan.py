"""`cohort plan --instance` and `cohort bench plan`: a plan with its bound for each file, in every format; what is no instance is one line."""
import json
import pathlib
import tempfile

from support import check, main, run, run_ok

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/instances/branches.json"
CHAIN = [4.0, 3.0, 2.0, 5.0]  # Without transfers two devices take 7 each.


def dnn_partitioning():
    nodes = [{"id": i, "fpgaLatency": seconds, "cpuLatency": 100 * seconds, "size": 1, "supportedOnFpga": 1, "isBackwardNode": 0} for i, seconds in enumerate(CHAIN)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0} for i in range(len(CHAIN) - 1)]
    return json.dumps({"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10, "nodes": nodes, "edges": edges})


def pipedream():
    nodes = "".join(f"node{i} -- Layer -- forward_compute_time={500 * seconds}, backward_compute_time={500 * seconds}, activation_size=0.0, parameter_size=1e12\n"
                    for i, seconds in enumerate(CHAIN))
    return nodes + "".join(f"\tnode{i} -- node{i + 1}\n" for i in range(len(CHAIN) - 1))


def piper():
    def variant(i):
        return {"id": "vanilla", "timePerSample": CHAIN[i], "parameterSize": 1e12, "memoryUsageA": 1, "memoryUsageB": 1,
                "syncTimeFw": {str(i - 1): 0} if i > 0 else {}, "syncTimeBw": {str(i + 1): 0} if i + 1 < len(CHAIN) else {}}
    nodes = [{"id": i, "name": f"n{i}", "TMPCs": {"1": [variant(i)]}} for i in range(len(CHAIN))]
    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 0} for i in range(len(CHAIN) - 1)]
    return json.dumps({"maxMemoryPerDevice": 100, "maxDevices": 2, "bandwidth": 1, "mbsInBatch": 4, "nodes": nodes, "edges": edges})


def test_every_format_finds_the_best_of_a_chain():
    with tempfile.TemporaryDirectory() as folder:
        for name, text, more in (("dnn-partitioning", dnn_partitioning(), []), ("pipedream", pipedream(), ["--machines", "2", "--bandwidth", "1e9"]), ("piper", piper(), [])):
            path = pathlib.Path(folder) / name
            path.write_text(text)
            line, twice = run_ok(["bench", "plan", "--format", name, *more, path, path, "--json"])
            check(line["event"] == "instance" and line["file"] == str(path) and abs(line["objective"] - 7) < 1e-9, line)
            check(line["optimal"] and abs(line["lower_bound"] - 7) < 1e-6 and line["plan"] == twice["plan"], f"{line} {twice}")


def test_the_example_is_planned_and_its_options_act():
    plan = run_ok(["plan", "--instance", EXAMPLE, "--json"])[-1]
    check(plan["event"] == "plan" and plan["optimal"] and plan["objective_seconds"] >= plan["lower_bound_seconds"] > 0, plan)
    check(sorted(layer for stage in plan["stages"] for layer in stage["layers"]) == [0, 1, 2, 3], plan)
    check(sorted(device for stage in plan["stages"] for device in stage["devices"]) == [0, 1, 2, 3], plan)
    same = run_ok(["bench", "plan", "--format", "cohort", EXAMPLE, "--json"])[-1]
    check(same["objective"] == plan["objective_seconds"], f"{same} {plan}")
    fewer = run_ok(["bench", "plan", "--format", "cohort", "--devices", 1, EXAMPLE, "--json"])[-1]
    check(fewer["objective"] > 2 * same["objective"], f"{fewer} {same}")


def test_zero_bubble_settings_are_answered_row_by_row():
    header = "stages,microbatches,forward,backward_input,backward_weight,transfer,hidden,heads,layers,sequence_length\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "settings.csv"
        path.write_text(header + "4,8,10,10,10,0,1024,16,8,512\n8,24,18522,18086,9337,601,2304,24,24,1024\n")
        lines = run_ok(["bench", "plan", "--format", "zero-bubble", path, "--json"])
        check([line["file"] for line in lines] == [f"{path}#0", f"{path}#1"], lines)
        bubbles = {schedule["name"]: schedule["bubble"] for schedule in lines[0]["plan"]["schedules"]}
        check(abs(bubbles["1f1b"] - 3 / 11) < 1e-9 and abs(bubbles["zb-h1"] - 3 / 27) < 1e-9 and abs(bubbles["interleaved:2"] - 3 / 19) < 1e-9, bubbles)
        check(lines[1]["optimal"] and abs(lines[1]["objective"] - 0.04331) < 5e-6, lines[1]["objective"])  # As published for ZB-2p.
        tight = run_ok(["bench", "plan", "--format", "zero-bubble", "--memory", 8, path, "--json"])[1]
        check(tight["optimal"] and abs(tight["objective"] - 0.15852) < 5e-6 and tight["plan"]["peak"] <= 8 + 1e-9, tight["objective"])  # And for ZB-1p.
        path.write_text(header + "4,8,10,10,ten,0,1024,16,8,512\n")
        code, out, err = run(["bench", "plan", "--format", "zero-bubble", path])
        check(code == 2 and "settings.csv:2: backward_weight is 'ten'" in err and len(err.splitlines()) == 1 and not out, f"{code} {err}")


def test_what_it_refuses():
    with tempfile.TemporaryDirectory() as folder:
        broken = pathlib.Path(folder) / "broken.json"
        broken.write_text(EXAMPLE.read_text()[:300])
        circle = pathlib.Path(folder) / "circle.json"
        circle.write_text(EXAMPLE.read_text().replace("[2, 3]]", "[2, 3], [3, 1]]"))
        for arguments, text, exit_code in ((["plan"], "--instance", 2), (["plan", "--instance", broken], "broken.json", 2), (["plan", "--instance", circle], "circle", 2),
                                           (["plan", "--instance", folder], folder, 2), (["bench", "plan", EXAMPLE], "--format", 2),
                                           (["bench", "plan", "--format", "cohrt", EXAMPLE], "cohort", 2), (["bench", "plan", "--format", "cohort"], "file", 2),
                                           (["bench", "plan", "--format", "cohort", "--machines", "4x4", EXAMPLE], "--machines", 2),
                                           (["bench", "plan", "--format", "piper", EXAMPLE], "branches.json", 2),
                                           (["bench", "plan", "--format", "cohort", "--memory", "1", EXAMPLE], "memory", 3)):
            code, out, err = run(arguments)
            check(code == exit_code and text in err and len(err.splitlines()) == 1 and not out, f"{arguments}: exit code {code}: {err}{out}")


if __name__ == "__main__":
    main(globals())

"""`cohort bench pipeline`: each schedule has a line and its figures fit together. Speed is not looked at."""
import json

from support import Folder, check, main, run, run_ok

SCHEDULES = ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved:2", "bfs:2"]
NUMBERS = ("step_seconds", "predicted_seconds", "forecast_error", "bubble", "predicted_bubble", "theoretical_bubble")


def check_line(line, schedule, workers, microbatches):
    layout = line["layout"]
    check((layout["pp"], layout["schedule"], layout["microbatches"]) == (workers, schedule, microbatches) and line["workers"] == workers, line)
    check(all(0 <= line[key] < 60 for key in NUMBERS) and 0 < line["step_seconds"] and 0 < line["predicted_seconds"], line)
    check(all(line[key] < 1 for key in NUMBERS if "bubble" in key), line)
    check(abs(line["forecast_error"] - abs(line["predicted_seconds"] / line["step_seconds"] - 1)) < 1e-9, line)


def test_every_schedule_has_a_line_and_a_trace():
    with Folder() as folder:
        lines = run_ok(["bench", "pipeline", "--workload", "mlp-small", "--microbatches", 2, "--schedules", "gpipe,zb-h1,zb-v", "--steps", 2,
                        "--rounds", 1, "--peers", "none", "--trace", folder / "t", "--json"])
        check([line["system"] for line in lines] == ["cohort"] * 3 + ["one-worker"], lines)
        for line, schedule in zip(lines, ("gpipe", "zb-h1", "zb-v")):
            check_line(line, schedule, 2, 2)
            check(line["workload"] == "mlp-small" and line["one_worker_seconds"] == lines[-1]["step_seconds"], line)
            check(line["ideal_seconds"] == line["one_worker_seconds"] / 2, line)
            trace = json.loads((folder / f"t-{schedule}.json").read_text())
            events = trace if isinstance(trace, list) else trace["traceEvents"]
            check({"F0.0", "F1.1"} <= {event["name"] for event in events}, events)
        check(abs(lines[0]["theoretical_bubble"] - 1 / 3) < 1e-9, lines[0])


def test_sleeping_layers_run_as_simulated():
    lines = run_ok(["bench", "pipeline", "--delays", "--workers", 4, "--microbatches", 4, "--steps", 1, "--json"])
    for line, schedule in zip(lines, SCHEDULES):
        check_line(line, schedule, 4, 4)
        # A sleep never ends early, so no step can be faster than its simulation.
        check(line["workload"] == "delays" and line["step_seconds"] >= 0.999 * line["predicted_seconds"], line)
    check(len(lines) == len(SCHEDULES) + 1 and lines[-1]["event"] == "delays", lines)
    errors = sorted(line["forecast_error"] for line in lines[:-1])
    check(lines[-1]["median_forecast_error"] == errors[len(errors) // 2], lines)


def test_a_models_own_times_sleep_as_simulated():
    lines = run_ok(["bench", "pipeline", "--delays", "--model", "resnet8", "--workers", 3, "--steps", 1, "--rounds", 1, "--json"])
    even, auto, last = lines
    check([line["layout"]["split"] for line in (even, auto)] == ["even", "auto"] and last["event"] == "split", lines)
    for line in (even, auto):
        check(line["workers"] == 3 and line["step_seconds"] >= line["predicted_seconds"] > 0, line)


def test_what_does_not_fit_is_refused():
    for arguments, word in ((["--workers", 1], "--workers 1"), (["--microbatches", 3], "3 micro-batches"), (["--workload", "huge"], "huge"),
                            (["--schedules", "1f2b"], "1f1b"), (["--peers", "/nowhere"], "/nowhere")):
        code, out, err = run(["bench", "pipeline", "--rounds", 1, *arguments])
        check(code == 2 and word in err, f"{arguments}: exit code {code}\n{out}{err}")


if __name__ == "__main__":
    main(globals())

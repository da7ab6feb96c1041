"""Forecasts of runs: a profile, a plan or `auto` says what a step of the layout that trains should cost; metrics, plan.json, trace.json and report hold it against what is measured, and
the calibration file keeps by how much it was off. Which of two times is smaller is nowhere asserted."""
import json
import os
import pathlib
import shutil
import subprocess

from support import COHORT, Folder, check, main, run, run_ok, skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
FC = ["--model", "fc:hidden=64,layers=2", "--data", "synthetic:1x16x16,classes=5,samples=400"]
STEP = ["--global-batch", 32, "--lr", "0.02", "--optimizer", "momentum"]
LAYOUTS = [("dp=2", 2, []), ("single", 1, []), ("dp=2,zero=3", 2, []), ("tp=2", 2, []), ("pp=2,schedule=zb-h1,microbatches=4", 2, []), ("pp=2,schedule=1f1b,microbatches=2", 2, ["--accumulate", 2])]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def event(folder, name):
    return next((line for line in lines_of(folder) if line["event"] == name), None)


def measured(folder):
    """A profile of FC on two ranks."""
    path = folder / "profile.json"
    run_ok(["plan", *FC, "--global-batch", 32, "--workers", 2, "--precision", "fp32", "--profile", path, "--no-what-if", "--calibration", "none"], timeout=300)
    return path


def lanes(folder):
    """{group: {lane: number of spans}}, and that each span has a place and a length."""
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    groups = {one["pid"]: one["args"]["name"].split(",")[0] for one in trace if one["name"] == "process_name"}
    found = {name: {} for name in groups.values()}
    for one in trace:
        if one["ph"] == "X":
            check(one["dur"] >= 0 and one["ts"] > -1e6, one)
            row = found[groups[one["pid"]]]
            row[one["tid"]] = row.get(one["tid"], 0) + 1
    return found


def test_every_layout_has_a_forecast_beside_its_measurement():
    with Folder() as folder:
        profile = folder / "profile.json"
        for number, (layout, workers, more) in enumerate(LAYOUTS):
            out = folder / f"run-{number}"
            before = profile.stat().st_mtime_ns if number > 0 else None  # The first measures, for one worker and for two.
            code, _, err = run(["train", *FC, *STEP, "--workers", workers, "--layout", layout, *more, "--steps", 12, "--profile", profile, "--run", out], timeout=300)
            check(code == 0 and err.count("forecast from --profile") == 1 and "a step took" in err, (layout, code, err))
            check(before is None or profile.stat().st_mtime_ns == before, "measured again")
            forecast, done = event(out, "forecast"), event(out, "done")
            low, high = forecast["interval"]
            check(0 < low <= forecast["predicted_step_seconds"] <= high and forecast["interval_from"], forecast)
            check(done["predicted_step_seconds"] == forecast["predicted_step_seconds"] and done["measured_step_seconds"] > 0, (layout, done))
            check(sorted(rank for worker in forecast["workers"] for rank in worker["ranks"]) == list(range(workers)), forecast["workers"])
            check(len(forecast["workers"]) == (2 if "pp" in layout else 1), forecast["workers"])
            for worker in forecast["workers"]:
                parts = sum(worker[key] for key in ("forward_seconds", "backward_seconds", "exposed_exchange_seconds", "update_seconds", "idle_seconds"))
                check(abs(parts / forecast["predicted_step_seconds"] - 1) < 1e-6, (layout, parts, forecast))
                check(worker["memory_bytes"]["total"] <= forecast["predicted_peak_memory_bytes"], worker)
            plan = json.loads((out / "plan.json").read_text())
            check(plan["format"] == "cohort-plan" and plan["predicted_step_seconds"] == forecast["predicted_step_seconds"], plan)
            rows = lanes(out)
            check(set(rows) == {"predicted", "measured"} and all(set(row) == set(range(workers)) for row in rows.values()), (layout, rows))
            check("<section id=\"forecast\">" in (out / "report.html").read_text(), layout)
            if "zb-h1" in layout:  # The plan of a run is a layout, and goes on being its forecast.
                again = folder / "again"
                run_ok(["train", *FC, *STEP, "--workers", workers, "--layout", out / "plan.json", "--steps", 3, "--run", again])
                check(event(again, "forecast")["predicted_step_seconds"] == forecast["predicted_step_seconds"], "a plan's own forecast")
                run_ok(["train", "--run", again, "--resume", "--steps", 5])
                events = lines_of(again)
                check(len([one for one in events if one["event"] == "forecast"]) == 2 and events[-1]["predicted_step_seconds"] == forecast["predicted_step_seconds"], "a resumed run")
                code, _, err = run(["train", *FC, *STEP, "--workers", workers, "--layout", out / "plan.json", "--global-batch", 16, "--steps", 2, "--run", folder / "other"])
                check(code == 0 and "its forecast is not taken" in err and not event(folder / "other", "forecast"), (code, err))


def test_without_a_profile_nothing_is_forecast_and_the_trace_is_measured():
    with Folder() as folder:
        out = folder / "run"
        code, _, err = run(["train", *FC, *STEP, "--workers", 2, "--steps", 4, "--run", out])
        check(code == 0 and "forecast" not in err, (code, err))
        check(event(out, "forecast") is None and event(out, "done")["predicted_step_seconds"] is None, "no forecast")
        check(not (out / "plan.json").exists() and "id=\"forecast\"" not in (out / "report.html").read_text(), "nothing of a forecast")
        rows = lanes(out)
        check(set(rows) == {"measured"} and set(rows["measured"]) == {0, 1} and all(count >= 3 for count in rows["measured"].values()), rows)


def test_auto_takes_a_profile_and_its_forecast_is_the_runs():
    with Folder() as folder:
        profile, out = measured(folder), folder / "run"
        before = profile.stat().st_mtime_ns
        code, _, err = run(["train", *FC, *STEP, "--workers", 2, "--layout", "auto", "--profile", profile, "--steps", 12, "--run", out], timeout=300)
        check(code == 0 and "auto: measured before" in err and profile.stat().st_mtime_ns == before, (code, err))
        forecast = event(out, "forecast")
        check(forecast["source"] == "--layout auto" and event(out, "done")["predicted_step_seconds"] == forecast["predicted_step_seconds"], forecast)


def test_what_cannot_be_forecast_is_one_line():
    with Folder() as folder:
        profile = measured(folder)
        one = folder / "one.json"
        kept = json.loads(profile.read_text())
        kept["measured_on"] = kept["measured_on"][:1]
        kept["points"] = [point for point in kept["points"] if point["device"] == "rank-of-1"]
        kept["codings"] = [row for row in kept.get("codings", []) if row["device"] == "rank-of-1"]
        one.write_text(json.dumps(kept))
        nowhere = folder / "nowhere.json"
        nowhere.write_text(json.dumps({**json.loads(profile.read_text()), "measured_on": []}))
        bare = folder / "bare.json"  # As somebody else's: it does not say what was measured, so its layers do.
        bare.write_text(json.dumps({**json.loads(profile.read_text()), "source": "elsewhere"}))
        cut = folder / "cut.json"
        cut.write_text(profile.read_text()[:500])
        two, other = ["--workers", 2], ["--model", "fc:hidden=32,layers=2", *FC[2:]]
        for arguments, words in (([*FC, *two, "--profile", one], "was measured with at most 1 worker side by side, and this run has 2"), ([*other, *two, "--profile", profile], "name another file"),
                                 ([*other, *two, "--profile", bare], "is of another model: it has"), (["--model", "fc:hidden=64,layers=3", *FC[2:], *two, "--profile", bare], "is of another model: its layer"),
                                 ([*FC, *two, "--profile", nowhere], "does not say what it was measured on"), ([*FC, *two, "--profile", cut], "cut.json"), ([*FC, *two, "--precision", "bf16", "--profile", profile], "bf16"),
                                 ([*FC, *two, "--calibration", folder / "c"], "would do nothing here"), ([*FC, *two, "--profile", folder / "no/such/folder.json"], "no/such")):
            code, out, err = run(["train", *arguments, *STEP, "--steps", 2, "--run", folder / "run"])
            check(code == 2 and words in err and len(err.strip().splitlines()) == 1, (arguments, code, err))
            check(not (folder / "run").exists(), "a run")
        code, _, err = run(["plan", "--profile", profile, "--cluster", ROOT / "clusters/cpu-host.toml", "--global-batch", 32, "--calibration", folder / "c"])
        check(code == 2 and "--calibration is of forecasts for this machine" in err, (code, err))


def test_under_a_launcher_the_profile_must_be_there():
    launcher = shutil.which("mpirun.openmpi")
    if not launcher:
        skip("no Open MPI")
    with Folder() as folder:
        def start(profile, out):
            command = [launcher, "-n", "2", COHORT, "train", *FC, *map(str, STEP), "--steps", "12", "--profile", str(profile), "--run", str(folder / out)]
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        missing = start(folder / "none.json", "a")
        check(missing.returncode != 0 and "nothing is measured; make it first: cohort plan --model" in missing.stderr, missing.stderr)
        good = start(measured(folder), "b")
        check(good.returncode == 0 and good.stderr.count("forecast from --profile") == 1, good.stderr)
        check(event(folder / "b", "done")["predicted_step_seconds"] > 0, "a forecast")


def test_the_next_interval_comes_from_the_errors_before():
    with Folder() as folder:
        profile, kept = measured(folder), folder / "cache/cohort/calibration.jsonl"
        here = {"env": {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}}

        def train(name, *more, steps=12, code=0):
            result = run(["train", *FC, *STEP, "--workers", 2, "--profile", profile, "--steps", steps, "--run", folder / name, *more], **here)
            check(result[0] == code, (name, result))
            return result[2]

        def plan(*more):
            code, out, err = run(["plan", "--profile", profile, "--global-batch", 32, "--optimizer", "momentum", "--layout", "dp=2,zero=0", "--no-what-if", "--json", *more], **here)
            check(code == 0, err)
            return json.loads(out), err

        def num_kept():
            return len(kept.read_text().splitlines()) if kept.exists() else 0

        check(plan()[0]["interval_from"] == "default", "nothing is known")
        train("none", "--calibration", "none")
        train("short", steps=9)
        train("slow", "--inject", "slow:1:2")
        check(num_kept() == 0, "what does not count")
        for number in range(3):
            train(f"run-{number}")
        check(num_kept() == 3, kept.read_text())
        rows = [json.loads(line) for line in kept.read_text().splitlines()]
        check(all(row["model"] == FC[1] and row["layout_class"] == "dp" and row["workers"] == 2 and row["precision"] == "fp32" and row["steps"] == 12 for row in rows), rows)
        done = event(folder / "run-2", "done")
        check(rows[-1]["measured_step_seconds"] == done["measured_step_seconds"] and rows[-1]["predicted_step_seconds"] == done["predicted_step_seconds"], (rows[-1], done))
        check(rows[-1]["measured_peak_bytes"] == max(done["peak_memory_bytes"]) and rows[-1]["predicted_peak_bytes"] > 0, (rows[-1], done))
        chosen, _ = plan()
        check(chosen["interval_from"] == f"calibration: 3 runs of {FC[1]} as dp", chosen["interval_from"])
        check(chosen["interval"][0] <= chosen["predicted_step_seconds"] <= chosen["interval"][1], chosen["interval"])
        check(plan("--calibration", "none")[0]["interval_from"] == "default", "none")
        train("fourth")
        check(event(folder / "fourth", "forecast")["interval_from"].startswith("calibration: 3 runs"), "a run's own interval")
        with kept.open("a") as file:
            file.write("{\"model\"\n")
        chosen, err = plan()
        check(chosen["interval_from"].startswith("calibration: 4 runs") and err.count("1 line is damaged and left out: line 5") == 1, err)
        # What cannot be written keeps nobody from training.
        (folder / "file").write_text("x")
        err = train("unwritable", "--calibration", folder / "file/below.jsonl")
        check("is not kept for the next interval" in err, err)


if __name__ == "__main__":
    main(globals())

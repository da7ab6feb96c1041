"""Plans from measurements: `train --layout auto` and `plan` without --cluster. What was chosen must be what trains, and nothing of the trials may be left."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from support import COHORT, Folder, check, children, exported, finish, main, run, run_ok, skip, start, wait_for

FC = ["--model", "fc:hidden=64,layers=2", "--data", "synthetic:1x16x16,classes=5,samples=400", "--global-batch", "32", "--optimizer", "momentum", "--lr", "0.02"]
TEXT = ["--model", "transformer:width=32,layers=2,heads=2", "--data", "synthetic:text,samples=200", "--context", "16", "--global-batch", "16", "--lr", "0.01"]


def settings(run_folder):
    text = (run_folder / "config.toml").read_text()
    return {key: value.strip('"') for key, value in re.findall(r"^([a-z_-]+) = (.*)$", text, re.M)}


def losses(run_folder):
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"], next(line for line in lines if line["event"] == "done")


def test_what_auto_chose_trains_as_if_it_had_been_typed():
    with Folder() as folder:
        trials = folder / "tmp"
        trials.mkdir()
        for model in (FC, TEXT):
            chosen, typed = folder / f"auto-{len(model)}-{model[1][:2]}", folder / f"typed-{model[1][:2]}"
            code, out, err = run(["train", *model, "--workers", 2, "--layout", "auto", "--steps", 12, "--run", chosen], timeout=300, env={**os.environ, "TMPDIR": str(trials)})
            check(code == 0 and "auto: layout " in err and "auto: measured in " in err, (code, out, err))
            plan = json.loads((chosen / "plan.json").read_text())
            its = settings(chosen)
            check(plan["format"] == "cohort-plan" and its["layout"] != "auto", (plan.get("format"), its))
            check(plan["num_workers"] == int(its.get("workers", 1)), (plan["num_workers"], its))
            options = [f"--{key}={its[key]}" for key in ("layout", "workers", "accumulate") if key in its]
            run_ok(["train", *model, *options, "--steps", 12, "--run", typed])
            (of_auto, done), (of_typed, plain) = losses(chosen), losses(typed)
            check(of_auto == of_typed and len(of_auto) == 12, (its, of_auto, of_typed))
            check(done["predicted_step_seconds"] == plan["predicted_step_seconds"] > 0, (done, plan["predicted_step_seconds"]))
            if its["layout"] != "single":  # One process is what the others are compared with.
                run_ok(["verify", *model, *options, "--steps", 3], timeout=300)
            # A run that goes on is not planned anew.
            code, out, err = run(["train", "--run", chosen, "--resume", "--steps", 16])
            check(code == 0 and "auto:" not in err and settings(chosen)["layout"] == its["layout"], (code, err))
            code, out, err = run(["train", "--run", chosen, "--resume", "--layout", "auto", "--steps", 20])
            check(code == 2 and "not planned anew" in err, (code, err))
        check(not list(trials.glob("cohort-trial-*")), "the folder of a trial")


def test_ctrl_c_ends_it_while_it_measures_and_tries():
    with Folder() as folder:
        for seconds in (0.7, 2, 4):
            run_folder = folder / f"run-{seconds}"
            arguments = [COHORT, "train", "--model", "cnn", "--data", "synthetic:1x16x16,classes=4,samples=512", "--workers", "2", "--layout", "auto", "--calibration", "none", "--steps", "100000", "--quiet", "--run", str(run_folder)]
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
            trained = (run_folder / "metrics.jsonl").exists()  # Where it was faster than that.
            check(process.returncode == 130 and (trained or err.strip().splitlines()[-1].count("interrupted") == 1), (seconds, process.returncode, out, err))


def test_a_rank_that_is_killed_while_it_measures_is_one_line():
    with Folder() as folder:
        process = start(["train", "--model", "cnn", "--data", "synthetic:1x16x16,classes=4,samples=512", "--workers", 2, "--layout", "auto", "--steps", 4, "--quiet", "--run", folder / "run"])
        time.sleep(0.6)
        wait_for(lambda: children(process.pid), "a rank that measures")
        os.kill(children(process.pid)[0], signal.SIGKILL)
        code, out, err = finish(process)
        check(code == 4 and "SIGKILL" in err and len(err.splitlines()) == 1, (code, out, err))


def test_auto_is_refused_where_nobody_plans():
    code, out, err = run(["verify", *FC, "--layout", "auto", "--workers", 2])
    check(code == 2 and "--layout auto is chosen by `cohort train`" in err, (code, err))


def test_what_no_layout_can_do_is_one_line_before_anything_is_measured():
    with Folder() as folder:
        (folder / "garbage").write_text("what\n")
        base = ["train", *FC, "--workers", 2, "--steps", 4, "--run", folder / "run"]
        auto = [*base, "--layout", "auto"]
        for arguments, words in (([*auto, "--sync-batch-norm"], "has no batch norm layers"), ([*auto, "--outer-lr", 0.5], "--outer-lr 0.5 would do nothing here"),
                                 ([*auto, "--backend", "nccl"], "--backend nccl"), ([*auto, "--memory-limit", 1000], "one sample of the data is a tensor of 1024 bytes"),
                                 ([*auto, "--calibration", folder / "garbage"], "invalid calibration file"), ([*auto, "--calibration", folder], "--calibration"),
                                 ([*base, "--profile", folder / "new.json", "--layout", "dp=2,sync=local:4"], "only sync=step is forecast"),
                                 ([*base, "--profile", folder / "new.json", "--outer-lr", 0.5], "would do nothing here"), (["train", "--model", "f\nc"], "f\\nc")):
            code, out, err = run(arguments)
            check(code == 2 and words in err and len(err.splitlines()) == 1 and not out, (arguments, code, out, err))
        check(not (folder / "new.json").exists(), "it was measured")


def test_auto_under_a_launcher_takes_all_ranks():
    launcher = shutil.which("mpirun.openmpi")
    if not launcher:
        skip("no Open MPI")
    with Folder() as folder:
        result = subprocess.run([launcher, "-n", "2", COHORT, "train", *FC, "--layout", "auto", "--steps", "6", "--run", str(folder / "run")],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        bad = subprocess.run([launcher, "-n", "2", COHORT, "train", *FC, "--layout", "auto", "--outer-lr", "0.5"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        check(bad.returncode == 2 and bad.stderr.count("--outer-lr 0.5 would do nothing") == 1, (bad.returncode, bad.stderr))
        check(result.returncode == 0 and result.stderr.count("auto: layout ") == 1, (result.returncode, result.stdout, result.stderr))
        check(json.loads((folder / "run" / "plan.json").read_text())["num_workers"] == 2, "two ranks")


def test_ranks_of_a_launcher_try_what_is_too_close_to_tell():
    launcher = shutil.which("mpirun.openmpi")
    if not launcher:
        skip("no Open MPI")
    small = ["--model", "fc:hidden=32", "--data", "synthetic:1x8x8,classes=4,samples=512", "--global-batch", "32", "--optimizer", "momentum", "--steps", "20"]
    with Folder() as folder:
        def trained(name, layout):
            result = subprocess.run([launcher, "-n", "2", COHORT, "train", *small, "--layout", layout, "--run", str(folder / name)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
            check(result.returncode == 0, result.stderr)
            return result.stderr
        for number in range(4):  # dp=2 and zero=1 are forecast within a few percent of each other, nearly always.
            text = trained(f"auto{number}", "auto")
            if "each ran 12 steps" in text:
                break
        check(text.count("each ran 12 steps") == 1 and text.count("auto: layout ") == 1, text)
        its = settings(folder / f"auto{number}")
        small += [f"--{key}={its[key]}" for key in ("accumulate",) if key in its]
        trained("typed", its["layout"])
        check(exported(folder / f"auto{number}", folder) == exported(folder / "typed", folder), f"{its}: the trials left something behind")


def test_a_measured_profile_is_kept_and_used_again():
    with Folder() as folder:
        profile = folder / "profile.json"
        asked = ["plan", *FC[:6], "--workers", 2, "--precision", "fp32", "--profile", profile, "--no-what-if", "--json"]
        first = run_ok(asked, timeout=300)[0]
        kept = json.loads(profile.read_text())
        check([cluster["hosts"][0]["devices_per_host"] for cluster in kept["measured_on"]] == [1, 2], kept["measured_on"])
        devices = {point["device"] for point in kept["points"]}  # A rank that a busy machine made slower has one of its own, "rank-of-2-speed-2".
        check({device.split("-speed-")[0] for device in devices} == {"rank-of-1", "rank-of-2"}, devices)
        changed = profile.stat().st_mtime_ns
        again = run_ok(asked)[0]
        check(profile.stat().st_mtime_ns == changed and again["layout"] == first["layout"], (first["layout"], again["layout"]))
        check(again["predicted_step_seconds"] == first["predicted_step_seconds"], "the same numbers")
        alone = run_ok(["plan", "--profile", profile, "--global-batch", 32, "--no-what-if", "--json"])[0]
        check(alone["predicted_step_seconds"] == first["predicted_step_seconds"], (alone, first))
        code, out, err = run([*asked, "--global-batch", 64])
        check(code == 2 and "is there and says" in err and len(err.strip().splitlines()) <= 2, (code, err))


if __name__ == "__main__":
    main(globals())

"""The time to a goal: `plan --study` and `--steps-curve`, `train --layout auto --study`. Batch, workers and layout are chosen together, no batch lies past the flat
point, and what is printed runs."""
import json
import pathlib
import shlex
import signal
import time
import tomllib

from support import Folder, check, finish, main, run, run_ok, start, tiny_study

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAIN, CPU_HOST, A100 = ROOT / "examples/profiles/chain.json", ROOT / "clusters/cpu-host.toml", ROOT / "clusters/a100.toml"
STUDY = tiny_study("[16, 64, 128]", "momentum = 0.75\n")
# Flat from 64: 128 needs hardly fewer, and its interval overlaps.
CURVE = """batch_size,steps,steps_low,steps_high,trial,step_before,num_kept,num_reached,num_infeasible,num_stopped,num_unknown,goal
16,200,200,260,2,190,3,2,0,0,0,val_error<0.2
64,100,100,120,1,95,3,1,0,0,0,val_error<0.2
128,95,95,110,0,90,3,1,0,0,0,val_error<0.2
"""
QUICK = ["--search-seconds", 2, "--no-what-if"]


def made_up_study(folder):
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "steps_curve.csv").write_text(CURVE)
    return folder


def check_goal(goal, steps, most_workers):
    """What must hold of the object `goal` whatever was chosen."""
    check([row["most_workers"] for row in goal["rows"]] == most_workers, goal["rows"])
    before = float("inf")
    for row in [row for row in goal["rows"] if row["feasible"]]:
        check(row["num_workers"] <= row["most_workers"] and row["seconds"] <= before, goal["rows"])
        check(abs(row["seconds"] / (steps[row["global_batch"]] * row["predicted_step_seconds"]) - 1) < 1e-9, row)
        check(row["interval"][0] <= row["seconds"] and (row["interval"][1] is None or row["seconds"] <= row["interval"][1]), row)
        check(abs(row["worker_hours"] / (row["num_workers"] * row["seconds"] / 3600) - 1) < 1e-9, row)
        check(row["worth_having"] == (row["most_workers"] <= goal["num_worth_having"]), row)
        before = row["seconds"]
    check(goal["seconds"] == before, goal)


def test_a_curve_in_a_file_says_batch_price_and_knee():
    with Folder() as folder:
        curve, page, out = folder / "curve.csv", folder / "plan.html", folder / "plan.json"
        curve.write_text("batch_size,steps\n16,4000\n64,1050\n256,900\n")
        where = ["--profile", CHAIN, "--cluster", CPU_HOST, "--steps-curve", curve, *QUICK]
        plan = run_ok(["plan", *where, "--json", "--out", out, "--report", page])[0]
        check(plan["objective_name"] == "time-to-goal" and plan["global_batch"] in (16, 64), plan["global_batch"])
        check_goal(plan["goal"], {16: 4000, 64: 1050}, [1, 2])
        check(plan["goal"]["flat_from"] == 64 and plan["goal"]["left_out"] == [256] and plan["goal"]["goal"] is None, plan["goal"])
        check(plan["objective"] == plan["goal"]["seconds"] and plan["objective_interval"] == plan["goal"]["interval"], plan["goal"])
        check(json.loads(out.read_text())["goal"] == plan["goal"], "plan.json")
        html = page.read_text()
        check('id="goal"' in html and "worker-hours" in html and html.count('<symbol id="') == len(set(html.split('<symbol id="')[1:])), "the page")
        text = run_ok(["plan", *where])
        for words in ("worker-hours", "batches above 64 need no fewer steps", "worth having", "plain data parallelism"):
            check(words in text, f"{words}: {text}")


def test_a_cluster_is_searched_for_each_number_of_workers_until_ctrl_c():
    with Folder() as folder:
        curve = folder / "curve.csv"
        curve.write_text("batch_size,steps\n64,9000\n512,1200\n4096,1150\n")
        model = ["--model", "transformer:layers=24,width=2048,heads=16,vocabulary=50304", "--context", 1024, "--cluster", A100, "--optimizer", "adamw"]
        began = time.monotonic()
        goal = run_ok(["plan", *model, "--steps-curve", curve, "--search-seconds", 4, "--no-what-if", "--json"])[0]["goal"]
        check(time.monotonic() - began < 30, "the time of the search holds")
        numbers = [row["most_workers"] for row in goal["rows"]]
        check(numbers == sorted(numbers) and numbers[-1] > 2 and goal["left_out"] == [4096], goal)
        check_goal(goal, {64: 9000, 512: 1200}, numbers)
        process = start(["plan", *model, "--steps-curve", curve, "--search-seconds", 100, "--json"])
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        code, out, err = finish(process)
        check(code in (0, 130) and time.monotonic() - began < 20, f"{code} {err}")
        if code == 0:
            stopped = json.loads(out)["goal"]
            check(stopped["rows"][-1]["seconds"] == stopped["seconds"], stopped)


def test_a_study_names_model_and_data_and_the_printed_line_runs():
    with Folder() as folder:
        study = made_up_study(folder / "s")
        text = run_ok(["plan", "--study", study, "--workers", 2, *QUICK])
        line = text.strip().splitlines()[-1]
        check(line.startswith("cohort train --study ") and "--model" not in line and "time to val_error<0.2" in text, text)
        run_ok([*shlex.split(line)[1:], "--steps", 3, "--run", folder / "run", "--quiet"])
        chosen = tomllib.loads((folder / "run/config.toml").read_text())
        check(chosen["model"] == "fc:hidden=16" and chosen["global_batch"] in (16, 64) and chosen["momentum"] == 0.75, chosen)
        plan = run_ok(["plan", "--study", study, "--workers", 2, *QUICK, "--json"])[0]
        check(plan["goal"]["goal"] == "val_error<0.2" and plan["layout"]["precision"] == "fp32" and plan["goal"]["left_out"] == [128], plan)
        check_goal(plan["goal"], {16: 200, 64: 100}, [1, 2])


def test_batch_workers_layout_and_hyperparameters_are_chosen_together():
    with Folder() as folder:
        study = made_up_study(folder / "s")
        code, _, err = run(["train", "--layout", "auto", "--study", study, "--workers", 2, "--run", folder / "run", "--quiet"])
        check(code == 0 and "auto: batch size " in err and "worker-hours" in err and "batches above 64" in err, (code, err))
        chosen, goal = tomllib.loads((folder / "run/config.toml").read_text()), json.loads((folder / "run/plan.json").read_text())["goal"]
        check(chosen["layout"] != "auto" and chosen["global_batch"] == goal["global_batch"] in (16, 64), (chosen, goal))
        check(chosen["goal"] == "val_error<0.2" and chosen["steps"] == 400 and chosen["momentum"] == 0.75 and 0.01 <= chosen["lr"] <= 0.1, chosen)
        # The hyperparameters are those of that batch's best trial.
        run_ok(["train", "--study", study, "--global-batch", chosen["global_batch"], "--steps", 1, "--run", folder / "typed", "--quiet"])
        typed = tomllib.loads((folder / "typed/config.toml").read_text())
        check(all(typed[key] == chosen[key] for key in ("lr", "momentum", "seed", "eval_every", "threads", "optimizer")), (typed, chosen))
        # With a batch that is given the layout alone is chosen.
        run_ok(["train", "--layout", "auto", "--study", study, "--global-batch", 128, "--workers", 2, "--steps", 1, "--run", folder / "given", "--quiet"])
        check(tomllib.loads((folder / "given/config.toml").read_text())["global_batch"] == 128, "a batch that was given")


def test_what_contradicts_the_study_is_one_line():
    with Folder() as folder:
        study = made_up_study(folder / "s")
        curve = folder / "s/steps_curve.csv"
        for arguments, words in ((["--study", study, "--model", "cnn"], "contradicts the study"), (["--study", study, "--steps-curve", curve], "two curves"),
                                 (["--study", study, "--objective", "step-time"], "--study is for --objective time-to-goal"),
                                 (["--steps-curve", curve, "--objective", "memory", "--profile", CHAIN, "--cluster", CPU_HOST], "--steps-curve is for"),
                                 (["--study", study, "--global-batch", 64], "the batch is chosen"), (["--study", folder / "none"], "study.toml: no such file"),
                                 (["--study", study, "--instance", ROOT / "examples/instances/branches.json"], "--study"),
                                 (["--study", study, "--find-batch", "--model", "fc", "--data", "mnist:x"], "--study")):
            code, out, err = run(["plan", *arguments])
            check(code == 2 and not out and err.count("\n") == 1 and words in err, f"{arguments}: {code} {out} {err}")
        curve.write_text(CURVE.replace("16,200,", "16,,"). replace("64,100,", "64,,").replace("128,95,", "128,,"))
        code, out, err = run(["plan", "--study", study])
        check(code == 2 and "no batch size reached the goal" in err, (code, err))
        curve.unlink()
        code, out, err = run(["train", "--layout", "auto", "--study", study, "--workers", 2, "--run", folder / "run"])
        check(code == 2 and "holds no study" in err and not (folder / "run").exists(), (code, err))


if __name__ == "__main__":
    main(globals())

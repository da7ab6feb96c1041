"""`cohort train --global-batch auto --study DIR`, and the settings of trials that `train` takes over: label smoothing, the end of the decay."""
import tomllib

from support import Folder, check, main, run, run_ok, tiny_study

MODEL = ["--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=512"]
STUDY = tiny_study("[16, 64]", "momentum = 0.75\ndecay_fraction = 0.5\nend_factor = 0.1\nlabel_smoothing = 0.1\n")
# One worker: 16 takes 0.2 s, 64 takes 0.3 s. Two: 0.2 s and 0.15 s.
CURVE = """batch_size,steps,steps_low,steps_high,trial,step_before,num_kept,num_reached,num_infeasible,num_stopped,num_unknown,goal
16,200,200,260,2,190,3,2,0,0,0,val_error<0.2
64,100,100,inf,1,95,3,1,0,0,0,val_error<0.2
"""
TIMES = """batch_size,num_workers,step_seconds,step_seconds_low,step_seconds_high
16,1,0.001,0.0009,0.0012
16,2,0.001,0.0009,0.0012
64,1,0.003,0.0029,0.0031
64,2,0.0015,0.0014,0.0016
"""


def study(folder):
    folder.mkdir()
    for name, text in (("study.toml", STUDY), ("steps_curve.csv", CURVE), ("step_times.csv", TIMES)):
        (folder / name).write_text(text)
    return folder


def complaint(arguments):
    code, out, err = run(arguments)
    check(code == 2 and not out and err.count("\n") == 1, f"{arguments}: exit code {code}\n{out}{err}")
    return err


def test_auto_batch_takes_what_is_soonest_for_these_workers():
    with Folder() as folder:
        auto = ["train", "--global-batch", "auto", "--study", study(folder / "s")]
        code, out, err = run([*auto, "--workers", 2, "--run", folder / "two", "--quiet"])
        check(code == 0, err)
        said = [line for line in err.splitlines() if "batch size 64 for 2 workers: 100 steps x 1.5 ms = 150.0 ms to val_error<0.2" in line]
        check(len(said) == 1 and "16 would take 200.0 ms" in said[0] and "trial 1" in said[0], err)
        chosen = tomllib.loads((folder / "two/config.toml").read_text())
        check(chosen["global_batch"] == 64 and chosen["momentum"] == 0.75 and 0.01 <= chosen["lr"] <= 0.1 and chosen["label_smoothing"] == 0.1, chosen)
        check(chosen["schedule_lr"] == "linear" and chosen["decay_steps"] == 200 and chosen["lr_end_factor"] == 0.1 and chosen["steps"] == 400, chosen)
        check(chosen["goal"] == "val_error<0.2" and chosen["eval_every"] == 5 and chosen["model"] == "fc:hidden=16" and chosen["threads"] == 1, chosen)
        code, out, err = run([*auto, "--workers", 1, "--steps", 4, "--lr", 0.02, "--run", folder / "one", "--quiet"])
        chosen = tomllib.loads((folder / "one/config.toml").read_text())
        check(code == 0 and chosen["global_batch"] == 16 and chosen["lr"] == 0.02 and chosen["steps"] == 4, err)
        # The run's own file has numbers alone: it trains again without the study.
        (folder / "s/steps_curve.csv").unlink()
        lines = run_ok(["train", folder / "one/config.toml", "--run", folder / "again", "--json"])
        check(lines[-1]["step"] == 4, lines[-1])


def test_auto_batch_says_what_is_missing_or_contradicts():
    with Folder() as folder:
        auto = ["train", "--global-batch", "auto", "--study", study(folder / "s"), "--run", folder / "run"]
        check("cohort study report" in complaint([*auto, "--workers", 3]) and not (folder / "run").exists(), "workers that were not measured")
        check("contradicts the study" in complaint([*auto, "--model", "cnn"]), "another model")
        check("pp=2" in complaint([*auto, "--layout", "pp=2"]), "a pipeline")
        check("--study DIR" in complaint(["train", "--global-batch", "auto"]), "no study")
        check("(16 64)" in complaint(["train", "--study", folder / "s", "--global-batch", 17]), "a batch size that was not measured")
        (folder / "s/step_times.csv").write_text(TIMES.replace("0.003,", "-1,"))
        check("step_times.csv:4: step_seconds is '-1'" in complaint(auto), "a wrong file")
        (folder / "s/step_times.csv").unlink()
        check("step_times.csv: no such file; make it with" in complaint(auto), "no step times")
        check("--global-batch auto is for" in complaint(["verify", *MODEL, "--global-batch", "auto", "--workers", 2]), "verify")


def losses(folder, name, *arguments):
    lines = run_ok(["train", *MODEL, "--global-batch", 32, "--lr", 0.05, "--steps", 8, "--run", folder / name, "--json", *arguments])
    return [line["loss"] for line in lines if line["event"] == "step"], [line["val_loss"] for line in lines if line["event"] == "eval"]


def test_label_smoothing_is_the_same_for_every_layout_and_not_of_evaluation():
    with Folder() as folder:
        smooth = ["--label-smoothing", 0.3]
        one, _ = losses(folder, "one", *smooth)
        plain, _ = losses(folder, "plain")
        check(abs(one[0] - plain[0]) > 1e-4, (one[0], plain[0]))
        for name, layout in (("two", ["--workers", 2]), ("pipeline", ["--layout", "pp=2,microbatches=2"])):
            worst = max(abs(a - b) / a for a, b in zip(one, losses(folder, name, *smooth, *layout)[0]))
            check(worst < 1e-4, f"{name}: the loss differs by {worst}")
        check(losses(folder, "still", "--lr", 0)[1] == losses(folder, "smooth-still", "--lr", 0, *smooth)[1], "evaluation is not smoothed")
        check("divided classes" in complaint(["train", *MODEL, *smooth, "--layout", "tp=2"]), "tp")


def test_decay_ends_where_it_is_said():
    with Folder() as folder:
        arguments = ["train", *MODEL, "--lr", 0.08, "--steps", 12, "--schedule-lr", "linear", "--lr-end-factor", 0.25, "--decay-steps", 4, "--run", folder / "run", "--json"]
        rates = [line["learning_rate"] for line in run_ok(arguments) if line["event"] == "step"]
        check(all(abs(rate - max(0.02, 0.08 - 0.015 * step)) < 1e-6 for step, rate in enumerate(rates)), rates)
        check("linear or cosine" in complaint(["train", *MODEL, "--decay-steps", 4]), "constant")


if __name__ == "__main__":
    main(globals())

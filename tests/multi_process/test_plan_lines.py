"""Every `cohort train` line that plan and the ladder print is one that train takes, as it stands: it is run, with a run folder and two steps more."""
import json
import os
import shlex
import subprocess
import sys

from support import Folder, check, main, run, steps_in

FC = ["--model", "fc:hidden=64,layers=2", "--data", "synthetic:1x16x16,classes=5,samples=400", "--global-batch", 32]
CNN = ["--model", "cnn:width=0.5", "--data", "synthetic:1x28x28,classes=10,samples=400", "--global-batch", 32]
TEXT = ["--model", "transformer:width=32,layers=2,heads=2", "--data", "synthetic:text,samples=200", "--context", 16, "--global-batch", 16]


def lines_of(text):
    return [line.strip() for line in text.splitlines() if line.strip().startswith("cohort train ")]


def trains(line, folder, name):
    words = shlex.split(line)[1:]
    code, _, err = run([*words, "--steps", 2, "--quiet", "--run", folder / name], timeout=300)
    check(code == 0 and steps_in(folder / name) == 2, f"{line}\nexit code {code}: {err}")


def with_options(typed, options):
    """The last of an option that comes twice counts: what the ladder says goes over what was typed."""
    words, typed = shlex.split(options), list(map(str, typed))
    names = {word for word in words if word.startswith("--")}
    return [word for i, word in enumerate(typed) if not (word in names or (i > 0 and typed[i - 1] in names))] + words


def test_lines_of_plans():
    with Folder() as folder:
        profile = folder / "profile.json"
        for number, arguments in enumerate((
                [*FC, "--workers", 2, "--inject", "slow:1:4", "--optimizer", "momentum"],
                [*FC, "--workers", 2, "--profile", profile],
                ["--profile", profile, "--global-batch", 32],
                [*CNN, "--workers", 2, "--memory-limit", 20_000_000],
                [*TEXT, "--workers", 2, "--layout", "pp=2", "--optimizer", "adamw"],
                ["--profile", profile, "--global-batch", 32, "--layout", "dp=2,zero=3"],
        )):
            code, out, err = run(["plan", *arguments, *([] if number == 2 else ["--precision", "fp32"]), "--no-what-if"], timeout=300)
            check(code == 0, f"{arguments}: {code} {err}")
            found = lines_of(out)
            check(len(found) == 1, f"{arguments}: {found}\n{out}")
            trains(found[0], folder, f"p{number}")


def test_other_programs_that_are_busy_are_said():
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        code, _, err = run(["plan", *FC, "--workers", 2, "--precision", "fp32", "--no-what-if"], timeout=300)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    check(code == 0 and "other programs kept" in err and "measure again when it is idle" in err, f"{code}: {err}")


def test_lines_and_options_of_the_ladder():
    with Folder() as folder:
        code, out, err = run(["train", *FC, "--workers", 2, "--memory-limit", 330_000, "--steps", 2, "--run", folder / "dies"], timeout=300)
        check(code == 4 and "memory limit" in err and "what to do" in out, f"{code} {out}{err}")
        for rung, line in enumerate(lines_of(out)):
            trains(line, folder, f"d{rung}")
        num_fitting = 0
        for number, (arguments, limit) in enumerate(((CNN, 14_000_000), (TEXT, 900_000))):
            typed = [*arguments, "--workers", 2, "--memory-limit", limit]
            code, out, err = run(["plan", "--ladder", *typed, "--precision", "fp32", "--json"], timeout=300)
            check(code in (0, 3), f"{arguments}: {code} {err}")
            for rung in json.loads(out.splitlines()[-1])["rungs"]:
                if rung["fits"] and rung["num_workers"] <= 2:
                    num_fitting += 1
                    trains(shlex.join(["cohort", "train", *with_options(typed, rung["options"])]), folder, f"l{number}-{num_fitting}")
        check(num_fitting > 2, f"{num_fitting} ways out fit")


if __name__ == "__main__":
    main(globals())

"""The ladder: what it says fits does train, a run that dies of memory ends with it, launchers' ranks get one sentence, bad input is one line."""
import json
import shlex
import shutil
import signal
import subprocess
import time

from support import COHORT, Folder, check, finish, main, run, run_ok, skip, start

FC = ["--model", "fc:hidden=256,layers=2", "--data", "synthetic:1x16x16,classes=5,samples=2000", "--global-batch", "1000"]


def ladder_of(out):
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"event":"ladder"')]
    check(len(lines) == 1, out)
    return lines[0]


def command(rung, typed):
    """What was typed with the rung's options over it."""
    words = shlex.split(rung["options"])
    names = {word for word in words if word.startswith("--")}
    return [*(word for i, word in enumerate(typed) if word not in names and (i == 0 or typed[i - 1] not in names)), *words]


def test_what_fits_trains_and_a_death_ends_with_the_ladder():
    limit = 6_000_000
    with Folder() as folder:
        code, out, err = run(["train", *FC, "--lr", "0.01", "--steps", 3, "--memory-limit", limit, "--json", "--run", folder / "fits"])
        check(code == 0, err)
        limit = int(0.7 * next(json.loads(line) for line in (folder / "fits" / "metrics.jsonl").read_text().splitlines() if '"event":"ranks"' in line)["ranks"][0]["peak_tensor_bytes"])
        dying = [*FC, "--memory-limit", str(limit)]
        code, out, err = run(["train", *dying, "--lr", "0.01", "--steps", 3, "--json", "--run", folder / "dies"])
        check(code == 4 and "this rank's memory limit is reached" in err and "raise --memory-limit" not in err, (code, err))
        ladder = ladder_of(out)
        base = ladder["rungs"][0]
        check(base["name"] == "as it is" and not base["fits"] and base["predicted_peak_memory_bytes"] > limit and "memory binds" in ladder["constraint"], ladder)
        fitting = [rung for rung in ladder["rungs"] if rung["fits"] and rung["num_workers"] == 1]
        check(fitting and any("--accumulate" in rung["options"] for rung in fitting), ladder)
        for rung in fitting[:2]:
            check(rung["predicted_peak_memory_bytes"] <= limit and rung["predicted_step_seconds"] > 0 and rung["seconds_to_goal"] is None, rung)
            code, _, err = run(["train", *command(rung, dying), "--lr", "0.001", "--steps", 2, "--quiet", "--run", folder / rung["name"].replace(" ", "-")])
            check(code == 0, (rung, err))


def test_nothing_fits_prints_the_ladder_before_the_line():
    code, out, err = run(["plan", "--model", "transformer:layers=4,width=256,heads=4", "--context", 64, "--cluster", "clusters/cpu-host.toml", "--workers", 2, "--global-batch", 64,
                          "--memory-limit", 5_000_000, "--no-what-if"], cwd=COHORT.split("/build/")[0])
    check(code == 3 and err.strip().splitlines()[-1].startswith("cohort: error: plan: no layout of at most 2 devices fits"), (code, err))
    for words in ("what to do", "as it is", "ZeRO 3", "pipeline", "shorter context", "memory binds"):
        check(words in out, (words, out))


def test_the_ladder_from_shapes_has_every_way_out():
    ladder = run_ok(["plan", "--ladder", "--model", "transformer:layers=4,width=256,heads=4", "--context", 256, "--cluster", "clusters/cpu-host.toml", "--workers", 2, "--global-batch", 64,
                     "--memory-limit", 500_000_000, "--json"], cwd=COHORT.split("/build/")[0])[0]
    names = [rung["name"] for rung in ladder["rungs"]]
    for name in ("as it is", "micro-batches, accumulated", "ZeRO 3", "pipeline", "all of these", "smaller batch", "more workers", "shorter context"):
        check(name in names, (name, names))
    check(any(note.startswith("--context 256: a batch of ") and "workers for the batch of 64" in note for note in ladder["notes"]), ladder["notes"])


def test_auto_that_finds_nothing_ends_with_it():
    code, out, err = run(["train", *FC, "--workers", 2, "--layout", "auto", "--memory-limit", 300_000, "--json", "--steps", 2], timeout=200)
    check(code == 3 and "no layout of at most 2 devices fits" in err.strip().splitlines()[-1], (code, err))
    check(not any(rung["fits"] for rung in ladder_of(out)["rungs"] if rung["num_workers"] <= 2 and "--model" not in rung["options"]), out)


def test_under_a_launcher_rank_0_says_one_sentence():
    launcher = shutil.which("mpirun.openmpi")
    if not launcher:
        skip("no Open MPI")
    with Folder() as folder:
        result = subprocess.run([launcher, "-n", "2", COHORT, "train", *FC, "--memory-limit", "2000000", "--steps", "2", "--run", str(folder / "run")], stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=200)
    check(result.returncode != 0 and "memory limit is reached" in result.stderr, (result.returncode, result.stderr))
    check(result.stderr.count("cohort plan --ladder --model") == 1 and "what to do" not in result.stdout, (result.stdout, result.stderr))


def test_a_stop_ends_it_with_what_there_is():
    process = start(["plan", "--ladder", "--model", "gpt:layers=48,width=2048,heads=16", "--context", 1024, "--cluster", "clusters/a100.toml", "--global-batch", 512, "--optimizer", "adamw"],
                    cwd=COHORT.split("/build/")[0])
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    code, out, err = finish(process)
    check(time.monotonic() - begin < 10, "it went on")
    check(code in (0, 3) and ("Stopped" in out or "more workers" in out or "as it is" in out), (code, out, err))


def test_bad_input_is_one_line():
    for arguments, words in ((["plan", "--ladder"], "plan: no model given"), (["plan", "--ladder", *FC, "--out", "x.json"], "--ladder and --out"),
                             (["plan", "--ladder", *FC, "--find-batch"], "--ladder and --find-batch"), (["plan", "--ladder", *FC, "--no-what-if"], "--ladder and --no-what-if")):
        code, out, err = run(arguments)
        check(code == 2 and words in err and len(err.splitlines()) == 1 and not out, f"{arguments}: {code} {err}{out}")


if __name__ == "__main__":
    main(globals())

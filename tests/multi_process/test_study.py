"""cohort study run: what is stored does not depend on how many ranks work, on who ends first, or on kills. Real processes, real signals."""
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import time

from support import COHORT, Folder, check, children, finish, run, run_ok, skip, start, wait_for, kill_session

QUADRATIC = """
[workload]
name = "quadratic"
data = "noisy-quadratic:dimensions=50{more}"
optimizer = "sgd"

[study]
goals = ["val_loss<0.3"]
batch_sizes = [1, 8, 64]
trials = 7
steps = {steps}
diverged_above = 100
seed = 3

[search]
learning_rate = {{ scale = "log", min = 1e-3, max = 60 }}

[censoring]
margin = 1.5
"""

MODEL = """
[workload]
name = "tiny"
data = "synthetic:1x8x8,classes=4,samples=600,noise=3"
model = "fc:hidden=16"
optimizer = "momentum"

[study]
goals = ["val_error<0.12"]
batch_sizes = [4, 32]
trials = {trials}
steps = {steps}

[search]
learning_rate = {{ scale = "log", min = 1e-3, max = {max_rate} }}
momentum = {{ values = [0.9] }}

[censoring]
enabled = {censoring}

[machine]
max_batch_per_worker = {max_batch}
"""
DEFAULTS = {"trials": 4, "steps": 3000, "max_rate": 3, "censoring": "true", "max_batch": 8192, "more": ""}


def write(folder, text, name="spec.toml", **values):
    path = folder / name
    path.write_text(text.format(**{**DEFAULTS, **values}))
    return path


def stored(folder):
    """All that a store holds but seconds; the same bits give the same value."""
    with sqlite3.connect(f"file:{folder}/study.db?mode=rw", uri=True) as database:
        trials = database.execute("SELECT trial, batch_size, id, status, steps, parameters FROM trials ORDER BY batch_size, id").fetchall()
        result = []
        for key, *rest in trials:
            rows = database.execute("SELECT * FROM measurements WHERE trial = ? ORDER BY step", (key,)).fetchall()
            result.append((rest, [row[1:] for row in rows]))
        return result


def num_stored(folder):
    # As the program reads: what a kill left in the journal is undone first, which who may only read can not do.
    try:
        with sqlite3.connect(f"file:{folder}/study.db?mode=rw", uri=True) as database:
            return database.execute("SELECT count(*) FROM trials").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def reported_sizes(folder):
    run_ok(["study", "report", folder, "--no-times"])
    return [int(line.split(",")[0]) for line in (folder / "steps_curve.csv").read_text().splitlines()[1:]]


def set_first_digit_of_seconds(snapshot, digit):
    """A time that the trial can not take here, so that a sum shows; False where the file says none."""
    content, key = snapshot.read_bytes(), b'"seconds":"'
    at = content.find(key) + len(key)
    if at < len(key):
        return False
    snapshot.write_bytes(content[:at] + digit + content[at + 1:])
    return True


def test_models_of_a_plug_in():
    library = pathlib.Path(COHORT).parent / "examples" / "squares.so"
    if not library.exists():
        skip("the example plug-in is not built")
    with Folder() as folder:
        spec = write(folder, MODEL.replace("fc:hidden=16", "squares"))
        run_ok(["study", "run", spec, "--out", folder / "study", "--plugin", library, "--workers", 2, "--steps", 50, "--trials", 2, "--quiet"])
        check(num_stored(folder / "study") >= 4, "trials of the plug-in's model")


def test_one_worker_and_three_store_the_same():
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=2000)
        lines = run_ok(["study", "run", spec, "--out", folder / "one", "--workers", 1, "--json"])
        run_ok(["study", "run", spec, "--out", folder / "three", "--workers", 3, "--quiet"])
        expected = stored(folder / "one")
        check(stored(folder / "three") == expected, "other trials with three workers")
        trials = [line for line in lines if line["event"] == "trial"]
        check([(t["batch_size"], t["trial"], t["status"], t["steps"]) for t in sorted(trials, key=lambda t: (t["batch_size"], t["trial"]))] == [(r[0], r[1], r[2], r[3]) for r, _ in expected], trials)
        check({"COMPLETE", "CENSORED", "INFEASIBLE"} == {t["status"] for t in trials}, trials)
        check(all(set(t) == {"event", "batch_size", "trial", "status", "steps", "seconds", "parameters", "best_val_error"} for t in trials), trials[0])
        results = [line for line in lines if line["event"] == "steps_to_result"]
        check([r["batch_size"] for r in results] == [1, 8, 64] and all(r["trials"] == 7 and r["steps"] > 0 for r in results), results)
        check(all(a["steps"] >= b["steps"] for a, b in zip(results, results[1:])), results)
        work = lines[-1]
        check(work["event"] == "work" and 0 < work["trained_steps"] < work["budget_steps"], work)
        check(not (folder / "one" / "in_progress").exists(), "files of running trials stay behind")
        # Nothing is left to do: a second start runs nothing and says the same.
        again = run_ok(["study", "run", spec, "--out", folder / "one", "--workers", 2, "--json"])
        check(again == [line for line in lines if line["event"] != "trial"], again)
        # More trials are asked for: the first ones stay.
        run_ok(["study", "run", spec, "--out", folder / "one", "--workers", 2, "--quiet", "--trials", 9])
        more = stored(folder / "one")
        check(len(more) > len(expected) and all(trial in more for trial in expected), "trials changed when more were asked for")


def test_some_batch_sizes_now_and_the_others_later():
    """Whatever a folder was asked for in which order, it holds the trials that one run of it all would have stored."""
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=2000)
        whole, parts = folder / "whole", folder / "parts"
        run_ok(["study", "run", spec, "--out", whole, "--workers", 1, "--quiet"])
        expected = stored(whole)
        command = ["study", "run", spec, "--out", parts, "--workers", 2]
        of_sizes = lambda *sizes: [trial for trial in expected if trial[0][0] in sizes]
        lines = run_ok([*command, "--batch-sizes", "8", "--json"])
        check(stored(parts) == of_sizes(8) and [l["batch_size"] for l in lines if l["event"] == "steps_to_result"] == [8], lines)
        # Others, though the folder holds one that is not asked for now; then the rest.
        code, out, err = run([*command, "--batch-sizes", "1"])
        check(code == 0 and stored(parts) == of_sizes(1, 8) and "left as it is: batch size 8" in err, f"{code} {out} {err}")
        check(reported_sizes(parts) == [1, 8], "the report has other batch sizes than those that are there")
        run_ok([*command, "--quiet"])
        check(stored(parts) == expected, "a study in parts holds other trials")
        check(reported_sizes(parts) == [1, 8, 64] and run_ok(["study", "fit", parts, "--json"]) == run_ok(["study", "fit", whole, "--json"]), "another study")
        # All at hand: a part asks for nothing, and so do fewer trials; more of one batch size leave the others.
        code, _, err = run([*command, "--batch-sizes", "64,8"])
        check(code == 0 and "nothing is left to do" in err and stored(parts) == expected, f"{code} {err}")
        code, _, err = run([*command, "--trials", 3])
        check(code == 0 and "nothing is left to do" in err and stored(parts) == expected, f"{code} {err}")
        run_ok([*command, "--batch-sizes", "64", "--trials", 10, "--quiet"])
        grown = stored(parts)
        check(all(trial in grown for trial in expected) and {trial[0][0] for trial in grown if trial not in expected} == {64}, "more trials changed the others")
        check("trials = [7, 7, 10]" in (parts / "study.toml").read_text(), (parts / "study.toml").read_text())
        # The words of the spec that was kept: the same study again.
        run_ok(["study", "run", parts / "study.toml", "--out", folder / "again", "--workers", 2, "--quiet"])
        check(stored(folder / "again") == grown, "study.toml is another study")
        refused([*command[2:], "--batch-sizes", "64", "--seed", 9], "holds another study", "seed")
        refused([*command[2:], "--batch-sizes", "64", "--steps", 500], "holds another study", "steps at batch size 64 were 2000 and are only 500")


def test_censoring_gives_the_same_minimum_for_less_work():
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=2000)
        censored = run_ok(["study", "run", spec, "--out", folder / "a", "--workers", 2, "--json", "--censor-margin", 1])
        full = run_ok(["study", "run", spec, "--out", folder / "b", "--workers", 2, "--json", "--no-censoring"])
        pick = lambda lines: [(l["batch_size"], l["steps"], l["trial"]) for l in lines if l["event"] == "steps_to_result"]
        check(pick(censored) == pick(full), f"{pick(censored)} {pick(full)}")
        check(censored[-1]["trained_steps"] * 2 < full[-1]["trained_steps"] == full[-1]["budget_steps"], f"{censored[-1]} {full[-1]}")
        check({l["status"] for l in full if l["event"] == "trial"} == {"COMPLETE", "INFEASIBLE"}, "a status that whole budgets cannot have")


def test_killed_at_random_moments_it_loses_nothing():
    seed = int.from_bytes(os.urandom(4), "little")
    dice = random.Random(seed)
    with Folder() as folder:
        for text, values in ((QUADRATIC, {"steps": 8000, "more": ",sampled=1"}), (MODEL, {})):
            spec = write(folder, text, **values)
            began = time.monotonic()
            run_ok(["study", "run", spec, "--out", folder / "whole", "--workers", 1, "--quiet"])
            latest, kills = 0.6 * (time.monotonic() - began), 0
            for _ in range(12):
                if kills == 3:
                    break
                began = time.monotonic()
                process = start(["study", "run", spec, "--out", folder / "killed", "--workers", 3, "--quiet"])
                try:
                    process.wait(timeout=dice.uniform(0.02, latest))
                    latest = min(latest, time.monotonic() - began)
                    if kills == 0:  # Faster than the kill: once more from the start.
                        shutil.rmtree(folder / "killed", ignore_errors=True)
                except subprocess.TimeoutExpired:
                    before = num_stored(folder / "killed")
                    kill_session(process)
                    check(num_stored(folder / "killed") >= before, f"seed {seed}: trials are lost")
                    kills += 1
            if process.poll() is not None and process.stdout and not process.stdout.closed:
                process.communicate()
            run_ok(["study", "run", spec, "--out", folder / "killed", "--workers", 2, "--quiet"])
            check(kills > 0, "it was never killed")
            check(stored(folder / "killed") == stored(folder / "whole"), f"seed {seed}: {kills} kills changed what is stored")
            for name in ("whole", "killed"):
                shutil.rmtree(folder / name)


def test_control_c_saves_and_a_second_start_goes_on():
    with Folder() as folder:
        spec = write(folder, MODEL)
        arguments = ["study", "run", spec, "--out", folder / "study", "--workers", 2, "--steps", 60000, "--no-censoring"]
        process = start(arguments)
        wait_for(lambda: (folder / "study" / "in_progress").exists(), "the study begins")
        wait_for(lambda: num_stored(folder / "study") > 0, "the first trial ends")
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        code, _, err = finish(process, timeout=40)
        check(code == 130, f"exit code {code}\n{err}")
        snapshots = list((folder / "study" / "in_progress").glob("*.snapshot"))
        check(snapshots, f"no running trial was saved\n{err}")
        saved = [path.name.split("_")[:2] for path in snapshots if set_first_digit_of_seconds(path, b"9")]
        check(saved, "no snapshot says how long the trial took so far")
        check("goes on" in err, err)
        before = stored(folder / "study")
        run_ok(arguments + ["--quiet"])
        arguments[4] = folder / "whole"
        run_ok(arguments + ["--quiet"])
        check(len(before) < len(stored(folder / "whole")) == len(stored(folder / "study")), "the interrupted study was done already")
        check(stored(folder / "study") == stored(folder / "whole"), "Ctrl-C changed what is stored")
        with sqlite3.connect(f"file:{folder}/study/study.db?mode=ro", uri=True) as database:
            for batch_size, trial in saved:
                seconds = database.execute("SELECT seconds FROM trials WHERE batch_size = ? AND id = ?", (batch_size, trial)).fetchone()[0]
                check(seconds > 9, f"trial {trial} of batch size {batch_size}: {seconds} s, without those before the stop")


def test_divided_batches_train_in_teams():
    with Folder() as folder:
        spec = write(folder, MODEL, max_batch=16)
        code, out, err = run(["study", "run", spec, "--out", folder / "teams", "--workers", 3, "--trials", 2, "--steps", 300])
        check(code == 0, f"{code} {err}")
        check("leave 1 of 3 ranks idle" in err and "steps to val_error<0.12" in out and "cohort study report" in out, f"{out}\n{err}")
        run_ok(["study", "run", spec, "--out", folder / "again", "--workers", 3, "--trials", 2, "--steps", 300, "--quiet"])
        check(stored(folder / "teams") == stored(folder / "again"), "a team's trials differ from run to run")
        check({trial[0][0] for trial in stored(folder / "teams")} == {4, 32}, "batch sizes are missing")


def test_under_mpirun_the_same_is_stored():
    launcher = shutil.which("mpirun")
    if not launcher:
        skip("no mpirun is installed")
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=2000)
        run_ok(["study", "run", spec, "--out", folder / "one", "--workers", 1, "--quiet"])
        result = subprocess.run([launcher, "-n", "3", COHORT, "study", "run", str(spec), "--out", str(folder / "mpi"), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
        check(result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
        check(stored(folder / "mpi") == stored(folder / "one"), "other trials under mpirun")
        check(sum('"steps_to_result"' in line for line in result.stdout.splitlines()) == 3, result.stdout)


def test_a_killed_rank_ends_the_job_and_a_second_start_goes_on():
    with Folder() as folder:
        spec = write(folder, QUADRATIC.replace("dimensions=50", "dimensions=500"), steps=6000, more=",sampled=1")  # Seconds, so that the kill finds it at work.
        arguments = ["study", "run", spec, "--out", folder / "study", "--workers", 3, "--quiet", "--no-censoring"]
        process = start(arguments)
        victim = wait_for(lambda: len(children(process.pid)) == 3 and children(process.pid)[2], "ranks start")
        wait_for(lambda: (folder / "study" / "in_progress").exists(), "the study begins")
        os.kill(victim, signal.SIGKILL)
        code, _, err = finish(process)
        check(code == 4 and "rank 2" in err and "SIGKILL" in err, f"{code} {err}")
        run_ok(arguments)
        run_ok(["study", "run", spec, "--out", folder / "whole", "--workers", 1, "--quiet", "--no-censoring"])
        check(stored(folder / "study") == stored(folder / "whole"), "a lost rank changed what is stored")


def test_halving_warns_and_says_so_in_its_results():
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=900)
        process = start(["study", "run", spec, "--out", folder / "a", "--workers", 2, "--json", "--halving"])
        code, out, err = finish(process)
        check(code == 0 and "biased" in err, f"{code} {err}")
        lines = [json.loads(line) for line in out.splitlines()]
        check(all("biased" in line["warning"] for line in lines if line["event"] == "steps_to_result"), lines)
        check("CENSORED" in {line["status"] for line in lines if line["event"] == "trial"}, lines)
        run_ok(["study", "run", spec, "--out", folder / "b", "--workers", 1, "--quiet", "--halving"])
        check(stored(folder / "a") == stored(folder / "b"), "halving depends on the workers")


def test_a_forecast_writes_nothing():
    with Folder() as folder:
        spec = write(folder, MODEL)
        lines = run_ok(["study", "run", spec, "--dry-run", "--json", "--workers", 2])
        check([line.get("trials") for line in lines] == [4, 4, 8] and lines[-1]["event"] == "total", lines)
        check(lines[-1]["steps"] == 8 * 3000 and lines[-1]["hours"] > 0 and lines[0]["step_seconds"] > 0, lines)
        check("12,000" in run_ok(["study", "run", spec, "--dry-run"]), "the table has no steps")
        check(list(folder.iterdir()) == [spec], "a forecast wrote something")


def refused(arguments, *words):
    code, _, err = run(["study", "run", *arguments])
    check(code == 2 and err.count("\n") == 1 and all(word in err for word in words), f"{arguments}: {code}\n{err}")


def test_what_is_refused():
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=500)
        out = ["--out", folder / "study", "--workers", 1]
        run_ok(["study", "run", spec, *out, "--quiet"])
        refused([spec, *out, "--seed", 9], "holds another study", "seed")
        refused([spec, *out, "--no-censoring"], "holds another study", "censoring")
        refused([spec, "--workers", 1], "--out")
        refused([*out], "SPEC.toml")
        refused([spec, *out, "--batch-sizes", "1,7"], "'7'", "1 8 64")
        refused([spec, *out, "--trials", 0], "--trials")
        refused([spec, *out, "--censor-margin", 0.5], "--censor-margin")
        refused([spec, *out, "--backend", "mpi"], "mpirun")
        tiny = write(folder, MODEL, "tiny.toml")
        for more in ([spec, *out], [spec, "--dry-run"], [tiny, "--out", folder / "x", "--workers", 2], [tiny, "--dry-run"]):
            refused([*more, "--backend", "foo"], "'foo'", "auto shm gloo mpi shm+gloo shm+mpi")
        refused([spec, *out, "--backend", "glo"], "did you mean 'gloo'?")
        refused([spec, "--dry-run", "--backend", ""], "the value is empty; give --backend NAME")
        refused([folder / "none.toml", *out], "none.toml")
        refused([tiny, "--out", folder / "x", "--synthetic"], "synthetic data")
        # Among files of somebody else, whether it is a try or not; what a killed start left is not theirs.
        (folder / "full").mkdir()
        for name in ("d", "c", "b", "a"):
            (folder / "full" / name).write_text("precious")
        for more in ([], ["--dry-run"]):
            refused([spec, "--out", folder / "full", "--workers", 1, *more], "full holds no study but other files (a, b, c, ...), and a study has a folder of its own")
        run_ok(["study", "export", folder / "study", "--out", folder / "archive"])
        refused([spec, "--out", folder / "archive", "--workers", 1], "archive holds no study but other files (noisy-quadratic)")
        (folder / "killed").mkdir()
        (folder / "killed" / "study.lock").write_text("")
        run_ok(["study", "run", spec, "--out", folder / "killed", "--workers", 1, "--quiet"])
        (folder / "file").write_text("not a folder")
        code, _, err = run(["study", "run", spec, "--out", folder / "file", "--workers", 1])
        check(code != 0 and "file" in err, f"{code} {err}")


def test_what_a_trial_throws_ends_the_study_with_its_sentence():
    with Folder() as folder:
        spec = write(folder, MODEL.replace("fc:hidden=16", "lstm"))   # Reads text.
        code, _, err = run(["study", "run", spec, "--out", folder / "study", "--workers", 2, "--quiet"], timeout=60)
        check(code == 2 and "text" in err, f"{code} {err}")
        check("first step" not in err, f"trials are no steps of the job: {err}")


def test_a_second_writer_is_refused():
    with Folder() as folder:
        spec = write(folder, QUADRATIC, steps=20000000, more=",sampled=1")
        arguments = ["study", "run", spec, "--out", folder / "study", "--workers", 1, "--quiet", "--no-censoring"]
        process = start(arguments)
        wait_for(lambda: (folder / "study" / "in_progress").exists(), "the study begins")
        refused(arguments[2:], "in use by process", str(process.pid))
        kill_session(process)


if __name__ == "__main__":
    from support import main
    main(globals())

"""A run is one run: its own settings, one job at a time, and nothing torn or silent when it is killed or fails."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import time

from support import Folder, TINY, check, children, exported, finish, kill_session, main, run, run_ok, start, steps_in, wait_for

FOREVER = ["--steps", 1000000, "--quiet"]
SHORT = ["train", *TINY, "--quiet"]


def lines_of(run_folder):
    """All lines of metrics.jsonl; each must be whole."""
    raw = (pathlib.Path(run_folder) / "metrics.jsonl").read_text()
    check(raw.endswith("\n"), f"torn: {raw[-80:]!r}")
    return [json.loads(line) for line in raw.splitlines()]


def events(run_folder, kind):
    return [line for line in lines_of(run_folder) if line["event"] == kind]


def settings(run_folder):
    return dict(line.split(" = ", 1) for line in (run_folder / "config.toml").read_text().splitlines() if " = " in line)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_resume_goes_on_with_the_runs_own_settings():
    with Folder() as folder:
        own = ["train", *TINY[:6], "--optimizer", "adamw", "--lr", "0.003", "--weight-decay", "0.1", "--clip-norm", "1", "--precision", "bf16", "--workers", 2, "--quiet"]
        run_ok([*own, "--steps", 30, "--run", folder / "whole"])
        run_ok([*own, "--steps", 12, "--run", folder / "parts"])
        before = settings(folder / "parts")
        code, _, err = run(["train", "--run", folder / "parts", "--resume", "--steps", 30, "--quiet"])
        check(code == 0 and err.count("changed:") == 1 and "changed: steps 12 -> 30" in err, err)
        check(settings(folder / "parts") == {**before, "steps": "30"}, "the run's own settings stay")
        check(exported(folder / "parts", folder) == exported(folder / "whole", folder), "the same training as without a stop")
        changed = events(folder / "parts", "changed")
        check([(line["setting"], line["from"], line["to"], line["step"]) for line in changed] == [("steps", "12", "30", 12)], changed)


def test_options_beside_resume_are_merged_and_told():
    with Folder() as folder:
        run_ok([*SHORT, "--steps", 5, "--run", folder / "run"])
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--lr", "0.01", "--momentum", "0.9", "--epochs", 1, "--quiet"])
        check(code == 0, err)
        told = re.findall(r"changed: .*", err)
        check(told == ["changed: lr 0.05 -> 0.01", "changed: steps 5 -> 0", "changed: epochs 0.0 -> 1.0"], told)
        check([line["learning_rate"] for line in events(folder / "run", "step")] == [0.05] * 5 + [0.01] * 10, "the rate from step 6 on")
        check("changed after step 5" in (folder / "run/report.html").read_text(), "the report tells it")
        # A line that something damaged is no reason to lose the run, and is told; the piece that a kill leaves at the end is not worth a word.
        metrics = folder / "run/metrics.jsonl"
        lines = metrics.read_text().splitlines()
        metrics.write_text("\n".join([*lines[:2], lines[2][:20], *lines[3:], lines[3][:20]]))
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--quiet"])
        check(code == 0 and err.count("1 line is damaged") == 1, err)
        run_ok(["report", folder / "run"])
        # The run is the folder that the file lies in, wherever it was moved.
        shutil.move(folder / "run", folder / "moved")
        code, _, err = run(["train", folder / "moved/config.toml", "--resume", "--epochs", 2, "--quiet"], cwd="/")
        check(code == 0 and settings(folder / "moved")["run"] == f'"{folder / "moved"}"' and not (folder / "run").exists(), err)
        code, _, err = run(["train", "--resume"], cwd=folder)
        check(code == 2 and "--resume: no run given" in err, err)


def test_other_data_of_the_same_shape_are_refused():
    with Folder() as folder:
        for name, words in (("a", "the quick brown fox jumps over the lazy dog. "), ("b", "the quick brown fox jumps over the lazy cat. ")):
            (folder / name).mkdir()
            (folder / name / "text.txt").write_text(words * 80)
        shutil.copytree(folder / "a", folder / "copy")
        base = ["train", "--model", "transformer:width=16,layers=1,heads=2", "--context", 16, "--optimizer", "adamw", "--lr", "0.01", "--global-batch", 8, "--quiet"]
        run_ok([*base, "--data", f"text:{folder / 'a'}", "--steps", 3, "--run", folder / "run"])
        before = content(folder / "run")
        for change, expected in ((["--data", f"text:{folder / 'b'}"], "was trained on other data than"), (["--val-samples", 5], "give the same --data, --context, --image-size and --val-samples"),
                                 (["--context", 8], "give the same --data, --context, --image-size and --val-samples"), (["--seed", 2], "with --seed 1, this run has --seed 2"),
                                 (["--global-batch", 4], "with --global-batch 8, this run has --global-batch 4"), (["--model", "transformer:width=8,layers=1,heads=2"], "--model transformer:width=8,")):
            code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", 6, *change])
            check(code == 2 and expected in err and len(err.splitlines()) == 1, f"{change}: {code} {err}")
            check(content(folder / "run") == before, f"{change}: what is refused changes nothing")
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", 6, "--data", f"text:{folder / 'copy'}", "--quiet"])
        check(code == 0 and "changed: data" in err, f"the same data in another place: {code} {err}")


def test_a_cut_configuration_is_not_taken_for_a_whole_one():
    with Folder() as folder:
        run_ok([*SHORT, "--steps", 3, "--run", folder / "run"])
        file = folder / "run/config.toml"
        whole = file.read_text()
        lines = whole.splitlines(keepends=True)
        for kept in (0, 1, len(lines) // 2, len(lines) - 1):
            file.write_text("".join(lines[:kept]))
            for command in (["--run", folder / "run", "--resume"], [file, "--resume"], [file, "--run", folder / "other"]):
                if kept == 0 and "--resume" not in command:
                    continue  # An empty file of a user's own asks for the defaults.
                code, _, err = run(["train", *command, "--steps", 5, "--quiet"])
                check(code == 2 and len(err.splitlines()) == 1 and ("its end is missing" if kept else "holds no setting") in err, f"{kept} {command}: {code} {err}")
        check(not (folder / "other").exists(), "refused before anything is made")
        file.write_text("".join(line for line in lines if not line.startswith("# ")))  # As runs had it before.
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", 5, "--quiet"])
        check(code == 0 and file.read_text() == whole.replace("steps = 3", "steps = 5"), err)


def test_checkpoint_tools_beside_a_living_run():
    with Folder() as folder:
        process = start([*SHORT, *FOREVER, "--checkpoint-every", 1, "--run", folder / "run"])
        wait_for(lambda: steps_in(folder / "run") > 5, "training")
        for _ in range(10):
            for action in ("verify", "info"):
                code, out, err = run(["checkpoint", action, folder / "run", "--json"])
                check(code == 0 and ".old." not in out and ".tmp." not in out and json.loads(out)["checkpoints"], f"{action}: {code} {out} {err}")
        process.send_signal(signal.SIGTERM)
        check(finish(process, timeout=40)[0] == 130, "SIGTERM stops it")


def xxh64(data):
    """XXH64 with seed 0, as its specification has it."""
    mask, primes = (1 << 64) - 1, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
    rotate = lambda value, bits: (value << bits | value >> (64 - bits)) & mask
    step = lambda state, lane: rotate((state + lane * primes[1]) & mask, 31) * primes[0] & mask
    at, total = 0, len(data)
    if total >= 32:
        states = [(primes[0] + primes[1]) & mask, primes[1], 0, -primes[0] & mask]
        while at + 32 <= total:
            for i in range(4):
                states[i] = step(states[i], int.from_bytes(data[at:at + 8], "little"))
                at += 8
        value = sum(rotate(state, bits) for state, bits in zip(states, (1, 7, 12, 18))) & mask
        for state in states:
            value = ((value ^ step(0, state)) * primes[0] + primes[3]) & mask
    else:
        value = primes[4]
    value = (value + total) & mask
    while at + 8 <= total:
        value = (rotate(value ^ step(0, int.from_bytes(data[at:at + 8], "little")), 27) * primes[0] + primes[3]) & mask
        at += 8
    if at + 4 <= total:
        value = (rotate(value ^ int.from_bytes(data[at:at + 4], "little") * primes[0] & mask, 23) * primes[1] + primes[2]) & mask
        at += 4
    for byte in data[at:]:
        value = rotate(value ^ byte * primes[4] & mask, 11) * primes[0] & mask
    value = (value ^ value >> 33) * primes[1] & mask
    value = (value ^ value >> 29) * primes[2] & mask
    return value ^ value >> 32


def test_a_checkpoint_without_fingerprint_is_a_warning():
    with Folder() as folder:
        run_ok([*SHORT, "--steps", 3, "--run", folder / "run"])
        manifest = folder / "run/checkpoints/step-000000003/manifest.json"
        body = manifest.read_bytes()[:-29]
        check(f',"xxh64":"{xxh64(body):016x}"}}\n'.encode() == manifest.read_bytes()[-29:], "the checksum of the format")
        old = re.sub(rb',"data":"[0-9a-f]{16}"', b"", body, count=1)
        check(len(old) == len(body) - 26, "the fingerprint was there")
        manifest.write_bytes(old + f',"xxh64":"{xxh64(old):016x}"}}\n'.encode())
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", 5, "--quiet"])
        check(code == 0 and "has no fingerprint of its data" in err, f"{code} {err}")


def test_a_living_run_is_locked_and_a_dead_ones_lock_is_taken_over():
    with Folder() as folder:
        for workers in (1, 2):
            where = folder / str(workers)
            process = start([*SHORT, *FOREVER, "--eval-every", 50, "--workers", workers, "--run", where])
            wait_for(lambda: steps_in(where) > 60, "training")
            for second in (["train", *TINY, "--steps", 2, "--run", where], ["train", "--run", where, "--resume"], ["train", where / "config.toml", "--resume", "--lr", 1]):
                code, _, err = run(second)
                check(code == 2 and re.search(rf"error: --run .* is in use by process {process.pid} on \S+ since \S+Z: one job at a time", err) and len(err.splitlines()) == 1, f"{second}: {code} {err}")
            check(process.poll() is None and "lr = 0.05\n" in (where / "config.toml").read_text(), "the first one goes on untouched")
            kill_session(process)
            check((where / "run.lock").exists(), "a killed run leaves its lock file")
            run_ok(["train", "--run", where, "--resume", "--steps", 100 + steps_in(where), "--quiet"])
            check(not (where / "run.lock").exists(), "removed with the lock")
            check([line["step"] for line in events(where, "step")] == list(range(1, steps_in(where) + 1)), "one history")


def test_starts_at_one_moment():
    with Folder() as folder:
        for attempt in range(3):
            where = folder / f"one-{attempt}"
            ended = [finish(process) for process in [start([*SHORT, "--steps", 4, "--run", where]) for _ in range(4)]]
            check(sorted(code for code, _, _ in ended) == [0, 2, 2, 2], ended)
            check(all("is in use by process" in err or "already holds a run" in err for code, _, err in ended if code == 2), ended)
            check([line["event"] for line in lines_of(where) if line["event"] in ("start", "done")] == ["start", "done"], "one run")
        (folder / "default").mkdir()
        ended = [finish(process) for process in [start([*SHORT, "--steps", 4], cwd=folder / "default") for _ in range(4)]]
        check([code for code, _, _ in ended] == [0] * 4, ended)
        found = list((folder / "default/runs").iterdir())
        check(len(found) == 4 and all(len(events(one, "start")) == 1 for one in found), found)


def test_a_refused_start_leaves_nothing():
    with Folder() as folder:
        for arguments in (["--model", "cnnn"], ["--model", "fc:hiden=3"], ["--workers", 2, "--model", "fc:hiden=3"]):
            code, _, err = run(["train", *TINY[2:], *arguments, "--run", folder / "run"])
            check(code == 2 and not (folder / "run").exists(), f"{code} {err}")


def test_sighup_saves_with_one_worker_too():
    with Folder() as folder:
        for workers in (1, 2):
            where = folder / str(workers)
            process = start([*SHORT, *FOREVER, "--workers", workers, "--run", where])
            wait_for(lambda: steps_in(where) > 3, "training")
            process.send_signal(signal.SIGHUP)
            code, _, err = finish(process, timeout=40)
            check(code == 130 and (where / "checkpoints/latest").exists() and lines_of(where)[-1]["event"] == "interrupted", f"{code} {err}")
            # Under nohup it changes nothing.
            where = folder / f"nohup-{workers}"
            process = start([*SHORT, *FOREVER, "--workers", workers, "--run", where], preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            wait_for(lambda: steps_in(where) > 3, "training")
            for pid in [process.pid, *(children(process.pid) if workers > 1 else [])]:
                os.kill(pid, signal.SIGHUP)
            seen = steps_in(where)
            wait_for(lambda: steps_in(where) > seen + 50, "more steps")
            process.send_signal(signal.SIGTERM)
            check(finish(process, timeout=40)[0] == 130, "SIGTERM still stops it")


def check_failure(where, code, sentence):
    failed = lines_of(where)[-1]
    check(failed["event"] == "failed" and failed["exit_code"] == code and re.search(sentence, failed["cause"]), failed)
    for again in range(2):
        page = (where / "report.html").read_text()
        check(">failed</span>" in page and re.search(sentence, page) and f"(exit code {code})" in page, f"the report {again} shows the cause")
        (where / "report.html").unlink()
        run_ok(["report", where])
    return failed


def test_the_cause_of_a_failure_is_recorded_and_reported():
    with Folder() as folder:
        for workers in (1, 2):
            where = folder / f"nan-{workers}"
            code, out, err = run(["train", *TINY[:6], "--workers", workers, "--lr", "1e6", "--steps", 200, "--eval-every", 1, "--quiet", "--json", "--run", where])
            check(code == 1, err)
            failed = check_failure(where, 1, "not finite")
            check(failed["cause"] in err and json.loads(out.splitlines()[-1]) == failed, err)
        for victim in (0, 1):
            where = folder / f"killed-{victim}"
            code, _, err = run([*SHORT, "--workers", 2, "--steps", 1000, "--eval-every", 4, "--inject", f"kill:{victim}:7", "--run", where])
            check(code == 4, err)
            failed = check_failure(where, 4, rf"rank {victim} \(pid \d+\) was killed by signal 9 \(SIGKILL\) after step 7")
            check(failed["cause"] in err, err)
            check([line["step"] for line in events(where, "checkpoint")] == [4], "saved at every evaluation, without being asked")
            run_ok(["train", "--run", where, "--resume", "--steps", 20, "--quiet"])
            check(lines_of(where)[-1]["event"] == "done" and "failed</span>" not in (where / "report.html").read_text(), "it went on and ended well")
        where = folder / "stopped"
        process = start([*SHORT, *FOREVER, "--workers", 2, "--timeout", 2, "--run", where])
        wait_for(lambda: steps_in(where) > 3, "training")
        os.kill(children(process.pid)[1], signal.SIGSTOP)
        check(finish(process, timeout=40)[0] == 4, "lost")
        check_failure(where, 4, "has not come to|stopped")


def test_checkpoints_by_default_at_every_evaluation_and_with_end_only_then():
    with Folder() as folder:
        for given, expected in (([], [4, 8, 10]), (["--checkpoint-every", 0], [4, 8, 10]), (["--checkpoint-every", "end"], [10]), (["--checkpoint-every", 5], [5, 10])):
            where = folder / "".join(map(str, given or ["default"]))
            run_ok([*SHORT, "--steps", 10, "--eval-every", 4, *given, "--run", where])
            check([line["step"] for line in events(where, "checkpoint")] == expected, f"{given}: {events(where, 'checkpoint')}")
            run_ok(["train", "--run", where, "--resume", "--steps", 12, "--quiet"])


def test_resume_auto_begins_goes_on_and_is_done():
    with Folder() as folder:
        command = [*SHORT, "--steps", 300, "--checkpoint-every", 20]
        run_ok([*command, "--run", folder / "whole"])
        command += ["--run", folder / "run", "--resume=auto"]
        for kill in range(4):  # The first before a checkpoint, where there is nothing to go on from.
            process = start([*command, "--workers", 1 + kill % 2, "--inject", "slow:0:9"])
            wait_for(lambda: process.poll() is not None or steps_in(folder / "run") >= 4 + 60 * kill, "some steps")
            kill_session(process)
        code, _, err = run(command)
        check(code == 0 and len(events(folder / "run", "resume")) >= 3, f"{code} {err}")
        left = [path.name for path in folder.rglob("*") if ".tmp." in path.name]
        check(not left and steps_in(folder / "run") == 300, left)
        check([line["event"] for line in lines_of(folder / "run")].count("done") == 1, "one end")
        before = content(folder / "run")
        code, _, err = run(command)
        check(code == 0 and "is done, after 300 steps; nothing is left to do" in err and content(folder / "run") == before, f"{code} {err}")
        code, _, err = run([*command, "--steps", 310])
        check(code == 0 and "changed: steps 300 -> 310" in err and steps_in(folder / "run") == 310, f"{code} {err}")
        # What was edited in the run's own file is told against what the checkpoint was trained with, and checked.
        file = folder / "run/config.toml"
        whole = file.read_text()
        file.write_text(whole.replace("lr = 0.05", "lr = 0.01").replace("steps = 310", "steps = 315"))
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--quiet"])
        check(code == 0 and "changed: lr 0.05 -> 0.01" in err and "changed: steps 310 -> 315" in err, err)
        check([(line["setting"], line["to"]) for line in events(folder / "run", "changed")][-2:] == [("lr", "0.01"), ("steps", "315")], "and recorded")
        file.write_text(whole.replace("seed = 1", "seed = 2"))
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--quiet"])
        check(code == 2 and "was trained with --seed 1, this run has --seed 2" in err, err)
        code, _, err = run([*SHORT, "--resume=auto", "--steps", 3], cwd=folder)
        check(code == 2 and "no run given" in err, err)


def test_resume_auto_removes_no_checkpoint_whatever_it_is_called():
    with Folder() as folder:
        command = [*SHORT, "--steps", 12, "--checkpoint-every", 4]
        run_ok([*command, "--run", folder / "whole"])
        checkpoints = folder / "whole/checkpoints"
        newest = sorted(checkpoints.glob("step-*"))[-1]
        for name, what in (("checkpoints.tmp.bak", checkpoints), ("events", checkpoints), ("checkpoints/latest", checkpoints), ("checkpoints/step-000000012.tmp.abc", newest), ("report.html", checkpoints)):
            run_folder = folder / name.replace("/", "-")
            run_folder.mkdir()
            shutil.copy(folder / "whole/config.toml", run_folder)
            (run_folder / name).parent.mkdir(exist_ok=True)
            shutil.copytree(what, run_folder / name)
            before = content(run_folder)
            code, _, err = run([*command, "--run", run_folder, "--resume=auto"])
            check(code == 2 and "holds a run that saved no checkpoint" in err and content(run_folder) == before, f"{name}: {code}: {err}")
        # A copy in place of a pointer is the newest where it is the only whole one, and stays until that step has another.
        copy = folder / "copy"
        shutil.copytree(folder / "whole", copy, symlinks=True)
        (copy / "checkpoints/latest").unlink()
        shutil.copytree(newest, copy / "checkpoints/latest")
        os.truncate(copy / "checkpoints" / newest.name / "rank-00000.safetensors", 100)
        code, _, err = run([*command, "--steps", 16, "--run", copy, "--resume=auto"])
        check(code == 0 and steps_in(copy) == 16 and events(copy, "resume")[-1]["step"] == 12, f"{code}: {err}")
        check(list((copy / "checkpoints").glob("step-000000012.old.*")), "the only whole one of its step stays")


def test_what_is_done_is_no_other_training_and_has_its_best():
    with Folder() as folder:
        command = [*SHORT, "--steps", 12, "--checkpoint-every", 4, "--run", folder / "run", "--resume=auto"]
        run_ok(command)
        for other, told in ((["--seed", 7], "was trained with --seed 1, and this command has --seed 7"), (["--optimizer", "adam"], "was trained with --optimizer")):
            code, _, err = run([*command, *other])
            check(code == 2 and told in err, f"{code}: {err}")
        code, _, err = run([*command, "--lr", 0.5])
        check(code == 0 and "nothing is left to do, also with other settings: lr 0.05 -> 0.5" in err, f"{code}: {err}")
        # Killed after the last save and before its pointer.
        (folder / "run/checkpoints/best").unlink()
        metrics = folder / "run/metrics.jsonl"
        metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if '"event":"done"' not in line))
        run_ok(command)
        run_ok(["checkpoint", "export", folder / "run", "--checkpoint", "best", "--out", folder / "best.safetensors"])


def test_a_folder_that_is_moved_or_removed_while_it_trains():
    with Folder() as folder:
        for how in ("moved", "removed"):
            process = start([*SHORT, *FOREVER, "--workers", 2, "--run", folder / "run"])
            wait_for(lambda: steps_in(folder / "run") > 5, "training")
            if how == "moved":
                (folder / "run").rename(folder / "other")
            else:
                while (folder / "run").exists():  # What is saved meanwhile makes new entries.
                    shutil.rmtree(folder / "run", ignore_errors=True)
            code, _, err = finish(process, timeout=60)
            check(code == 4 and f"was {how}" in err.splitlines()[-1] and not (folder / "run").exists(), f"{code} {err}")
        step = steps_in(folder / "other")
        run_ok(["checkpoint", "verify", folder / "other"])
        run_ok(["train", folder / "other/config.toml", "--resume", "--steps", step + 5, "--quiet"])
        check(steps_in(folder / "other") == step + 5 and not (folder / "run").exists() and not (folder / "other/run.lock").exists(), "it goes on where it is")


def test_killed_runs_go_on_to_the_same_weights():
    """Everything is killed at a random moment: what is lost are the steps since the last evaluation, no line is torn, and the end is the same.

    COHORT_KILLS=60 COHORT_BIN=build/release/bin/cohort python3 tests/multi_process/test_run_folder.py test_killed_runs_go_on_to_the_same_weights
    """
    generator, trials, lost, torn = random.Random(3), int(os.environ.get("COHORT_KILLS", 6)), [], 0
    with Folder() as folder:
        base = [*SHORT, "--workers", 2, "--steps", 400, "--eval-every", 10]
        run_ok([*base, "--run", folder / "whole"])
        expected = exported(folder / "whole", folder)
        for trial in range(trials):
            where = folder / str(trial)
            process = start([*base, "--run", where, "--inject", "slow:0:3"])
            wait_for(lambda: steps_in(where) > 10, "training")
            time.sleep(generator.uniform(0, 0.5))
            kill_session(process)
            raw = (where / "metrics.jsonl").read_bytes()
            torn += not raw.endswith(b"\n")
            reached, saved = steps_in(where), max(int(path.name[5:]) for path in (where / "checkpoints").glob("step-?????????"))
            lost.append(reached - saved)
            check(-1 <= lost[-1] <= 11, f"steps {reached}, checkpoint {saved}")
            run_ok(["report", where])
            run_ok(["train", "--run", where, "--resume", "--quiet"])
            check([line["step"] for line in events(where, "step")] == list(range(1, 401)), "each step once")
            check(exported(where, folder) == expected, "the weights of the run that was never killed")
            shutil.rmtree(where)
    print(f"  {trials} kills of everything: {min(lost)} to {max(lost)} steps lost (an evaluation every 10), {torn} torn lines, all went on to the same weights")


if __name__ == "__main__":
    main(globals())

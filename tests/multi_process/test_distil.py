"""--teacher and `cohort compress distill`: the student is the same on every layout, with a teacher cache and with a live teacher; an exchanged or
unsuitable teacher is refused; a killed training resumes without loss."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

from support import Folder, check, kill_session, main, run, run_ok, start, steps_in, tensors, wait_for
from test_fine_tuning import distance, tensors as newest
from test_use_model import lines_of, refused

PICTURES = ["--data", "synthetic:1x8x8,classes=4,samples=330,noise=3", "--global-batch", "32", "--threads", "1"]
TEACHER, STUDENT = ["--model", "cnn:width=0.25", *PICTURES], ["--model", "cnn:width=0.125", *PICTURES, "--lr", "0.02"]
TEXT = ["--data", "synthetic:text,samples=120", "--context", "16", "--global-batch", "24", "--threads", "1"]


def trained(folder, *arguments):
    return run_ok(["train", *map(str, arguments), "--run", folder, "--json"])


def losses(lines):
    return [line["loss"] for line in lines if line["event"] == "step"]


def near(found, wanted, layout):
    check(len(found) == len(wanted) and max(abs(a - b) for a, b in zip(found, wanted)) < 2e-4 * wanted[0], (layout, found, wanted))


def contents(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_any_layout_learns_the_same_from_a_teacher():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 30, "--lr", 0.02, "--workers", 2, "--layout", "zero=2")
        before = contents(folder / "teacher")
        run_ok(["checkpoint", "export", folder / "teacher", "--out", folder / "teacher.safetensors"])
        taught = [*STUDENT, "--teacher", folder / "teacher", "--temperature", "3", "--alpha", "0.8", "--steps", "6"]
        alone = trained(folder / "alone", *taught, "--teacher-answers", "live")
        wanted = losses(alone)
        plain = losses(trained(folder / "plain", *STUDENT, "--steps", 6))
        check(max(abs(a - b) for a, b in zip(wanted, plain)) > 0.01, "the teacher says nothing")
        # Evaluation is that of the plain loss.
        found = run_ok(["evaluate", folder / "alone", "--json"])[-1]
        check(abs(found["loss"] - lines_of(alone, "eval")[-1]["val_loss"]) < 1e-6, found)
        near(losses(trained(folder / "nothing", *STUDENT, "--teacher", folder / "teacher", "--alpha", "0", "--steps", 6)), plain, "alpha 0")
        for number, layout in enumerate((["--workers", "2"], ["--workers", "2", "--layout", "zero=3"], ["--workers", "2", "--layout", "pp=2,microbatches=2"],
                                         ["--workers", "2", "--layout", "tp=2"], ["--workers", "2", "--layout", "pp=2,schedule=zb-v,microbatches=2"],
                                         ["--accumulate", "4"],
                                         ["--workers", "2", "--shares", "3:1"], ["--workers", "2", "--layout", "sync=stale:0"],
                                         ["--layout", "sync=stale:0", "--virtual", "workers=3,compute=1"])):
            hows = ("cached", "live") if any("stale" in word for word in layout) else ("cached", "live", "beside")
            for how in hows if "pp=2,microbatches=2" in layout or "tp=2" in layout else (hows[number % len(hows)],):
                source = (folder / "teacher", folder / "teacher/checkpoints/latest", folder / "teacher.safetensors")[number % 3]
                found = losses(trained(folder / f"{how}{number}", *taught, *layout, "--teacher", source, "--teacher-answers", how))
                near(found, wanted, (layout, how))
        # A teacher beside its student says the same to the last bit, of pictures that change too.
        for number, options in enumerate((["--accumulate", "3"], ["--augment", "crop,flip"])):
            each = [losses(trained(folder / f"{how}-same{number}", *taught, *options, "--teacher-answers", how)) for how in ("live", "beside")]
            check(each[0] == each[1] and (number == 0 or each[0] != wanted), (options, each))
        for layout in (["--workers", "2", "--layout", "sync=local:2"], ["--workers", "2", "--layout", "sync=diloco:2"],
                       ["--workers", "2", "--layout", "sync=async"]):
            trained(folder / ("l" + layout[-1].replace(":", "")), *taught, *layout)
        check(contents(folder / "teacher") == before, "the teacher is as it was")


def test_a_student_of_itself_has_nothing_to_learn():
    """A student that begins as its teacher, alpha 1: the loss is that of two equal answers, 0."""
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 20, "--lr", 0.02)
        for how in ("cached", "live"):
            for layout in ([], ["--workers", "2", "--layout", "pp=2,microbatches=2"]):
                found = losses(trained(folder / f"{how}{len(layout)}", *TEACHER, *layout, "--init-from", folder / "teacher",
                                       "--teacher", folder / "teacher", "--alpha", "1", "--lr", "0", "--steps", "2",
                                       "--teacher-answers", how))
                check(max(map(abs, found)) < 1e-5, (how, found))
        # Also for augmented pictures, for which cached scores would be those of the original picture.
        found = losses(trained(folder / "changed", *TEACHER, "--augment", "crop,flip", "--init-from", folder / "teacher",
                               "--teacher", folder / "teacher", "--alpha", "1", "--lr", "0", "--steps", "2"))
        check(max(map(abs, found)) < 1e-5, found)
        # A compressed teacher answers as its file does: nearly as the floats it was made of.
        run_ok(["compress", "quantize", folder / "teacher", "--scheme", "dynamic", "--out", folder / "small.safetensors"])
        found = losses(trained(folder / "of-int8", *TEACHER, "--init-from", folder / "teacher", "--teacher", folder / "small.safetensors",
                               "--alpha", "1", "--lr", "0", "--steps", "2"))
        check(0 < max(map(abs, found)) < 0.05, found)


def test_bytes_of_text_and_the_choice():
    with Folder() as folder:
        trained(folder / "teacher", "--model", "transformer:width=32,layers=2,heads=2", *TEXT, "--optimizer", "adam", "--lr", "0.003", "--steps", 10)
        student = ["--model", "transformer:width=16,layers=1,heads=2", *TEXT, "--optimizer", "adam", "--lr", "0.003", "--teacher", folder / "teacher",
                   "--steps", "4"]
        wanted = losses(trained(folder / "alone", *student, "--teacher-answers", "live"))
        near(losses(trained(folder / "cached", *student, "--workers", 2, "--teacher-answers", "cached")), wanted, "cached")
        # All of them are there by now, so they are read; where they are not, a long run keeps them and a short one does not.
        for steps, cache, said in ((4, None, "all of them are there"), (1, "empty", "asked in every step, for that is sooner done"),
                                   (400, "empty", "kept in ")):
            environment = {**os.environ, **({"XDG_CACHE_HOME": str(folder / cache)} if cache else {})}
            # With a thread on every core none is left for a teacher beside the student.
            words = [str(len(os.sched_getaffinity(0))) if before == "--threads" else word for before, word in zip(["", *student], student[:-1])]
            code, _, err = run(["train", *words, steps, "--eval-every", steps, "--run", folder / f"auto{steps}"], env=environment)
            told = [line for line in err.splitlines() if "teacher: " in line]
            check(code == 0 and len(told) == 1 and said in told[0], (steps, err))
        kept = "teacher_answers = \"cached\""
        check(kept in (folder / "auto400/config.toml").read_text() and kept not in (folder / "auto1/config.toml").read_text(), "how it began is kept")


def test_hints_from_layers():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 30, "--lr", 0.02)
        taught = [*STUDENT, "--teacher", folder / "teacher", "--steps", "6"]
        hint = ["--hint", "conv2:conv2,conv1:conv2"]
        wanted = losses(trained(folder / "hints", *taught, *hint))
        without = losses(trained(folder / "plain", *taught))
        check(max(abs(a - b) for a, b in zip(wanted, without)) > 0.01, "hints say nothing")
        # Its weight scales it, and nothing of it is nothing.
        near(losses(trained(folder / "none", *taught, *hint, "--hint-weight", "0")), without, "no weight")
        near(losses(trained(folder / "two", *taught, *hint, "--workers", 2)), wanted, "dp")
        near(losses(trained(folder / "three", *taught, *hint, "--workers", 3, "--layout", "zero=3")), wanted, "zero=3")
        near(losses(trained(folder / "local", *taught, *hint, "--workers", 2, "--layout", "sync=local:1")), wanted, "local:1")
        strong = trained(folder / "strong", *taught, *hint, "--hint-weight", "100", "--steps", 40)
        check(losses(strong)[-1] < 0.6 * losses(strong)[0], "the student comes to look where its teacher looks")
        run_ok(["compress", "distill", folder / "teacher", "--student", "cnn:width=0.125", "--hint", "conv2:conv2", "--steps", "3",
                "--out", folder / "s.safetensors", "--json"])
        before = contents(folder)
        again = ["compress", "distill", folder / "teacher", "--student", "cnn:width=0.125", "--steps", "3", "--out", folder / "s.safetensors"]
        refused(again, "holds another run, with --hint conv2:conv2 where this one has none")
        refused([*again, "--hint", "conv2:conv2", "--alpha", "0.9"], "with --alpha 0.5 where this one has 0.9")
        base = ["train", *taught, "--run", folder / "bad"]
        refused([*base, "--hint", "conv2"], "--hint", "conv2:conv2")
        refused([*base, "--hint", "conv3:conv2"], "no layer", "conv3", "did you mean")
        refused([*base, "--hint", "conv2:conv3"], "the teacher's layers", "conv3")
        refused([*base, "--hint", "hidden:conv2"], "must have positions")
        for how in ("cached", "beside"):
            refused([*base, *hint, "--teacher-answers", how], f"--teacher-answers {how} with --hint", "use live")
        refused([*base, *hint, "--workers", "2", "--layout", "pp=2"], "--hint conv2:conv2,conv1:conv2 with pp is not supported")
        refused([*base, *hint, "--workers", "2", "--layout", "sync=async"], "sync=async is not supported")
        refused([*base[:-2], "--run", folder / "bad", "--hint-weight", "2"], "--hint-weight", "add --hint")
        check(contents(folder) == before, "nothing is written")


def test_a_kill_and_another_layout():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 20, "--lr", 0.02)
        taught = [*STUDENT, "--teacher", folder / "teacher", "--eval-every", "4", "--checkpoint-every", "4"]
        whole = trained(folder / "whole", *taught, "--steps", 12)
        code, _, err = run(["train", *taught, "--steps", 12, "--workers", 2, "--inject", "kill:1:6", "--run", folder / "halves"])
        check(code != 0, err)
        trained(folder / "halves", "--resume", "--workers", 2, "--layout", "pp=2,microbatches=2")
        mine, theirs = newest(folder, folder / "halves"), newest(folder, folder / "whole", "y")
        check(max(distance(mine[name], theirs[name]) for name in mine) < 1e-4, "another student after a kill")
        check(abs(lines_of(whole, "done")[-1]["val_loss"] - run_ok(["evaluate", folder / "halves", "--json"])[-1]["loss"]) < 1e-3, "the same loss")
        # What auto came to does not stand in the way of another layout.
        shutil.copytree(folder / "halves", folder / "async", symlinks=True)
        trained(folder / "async", "--resume", "--steps", 13, "--workers", 2, "--layout", "sync=async")
        # The teacher that it began with, and no other, wherever it lies now.
        shutil.copytree(folder / "teacher", folder / "copy", symlinks=True)
        trained(folder / "halves", "--resume", "--steps", 14, "--teacher", folder / "copy")
        trained(folder / "other", *TEACHER, "--steps", 21, "--lr", 0.02)
        refused(["train", "--run", folder / "halves", "--resume", "--steps", 16, "--teacher", folder / "other"], "--resume: ", "other weights", "--teacher")
        shutil.rmtree(folder / "copy")
        refused(["train", "--run", folder / "halves", "--resume", "--steps", 16], "--teacher ", "copy")


def test_verify_has_a_teacher():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 4)
        run_ok(["verify", *STUDENT, "--layouts", "dp=2;zero=2;pp=2,microbatches=2;tp=2", "--steps", 3, "--teacher", folder / "teacher", "--json"])
        for how in ("cached", "beside"):
            run_ok(["verify", *STUDENT, "--layouts", "dp=2;pp=2,microbatches=2", "--steps", 2, "--teacher", folder / "teacher",
                    "--teacher-answers", how, "--json"])


def test_distill_makes_a_file():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 60, "--lr", 0.02, "--eval-every", 20)
        before = contents(folder / "teacher")
        out = folder / "student.safetensors"
        command = ["compress", "distill", folder / "teacher", "--student", "fc:hidden=16", "--temperature", "3", "--steps", "3000",
                   "--eval-every", "50", "--out", out, "--json"]
        # Killed in the middle, the same command goes on.
        process = start([*command[:-1], "--quiet"])
        wait_for(lambda: steps_in(folder / "student.run") > 110, "steps")
        kill_session(process)
        check(steps_in(folder / "student.run") < 3000 and not out.exists(), "it ended before the kill")
        lines = run_ok(command)
        check(lines_of(lines, "step")[0]["step"] > 50, "it did not begin anew")
        last = lines[-1]
        check(last["event"] == "compress" and last["method"] == "distill T=3 alpha=0.5" and last["bytes"] == out.stat().st_size and last["step"] == 3000, last)
        check(last["bytes"] < last["original_bytes"], last)
        found = run_ok(["evaluate", out, "--json"])[-1]
        check(abs(found["loss"] - last["val_loss"]) < 1e-6 and found["error"] == last["val_error"], (found, last))
        check(run_ok(["evaluate", folder / "teacher", "--json"])[-1]["error"] == last["original_val_error"], last)
        check(contents(folder / "teacher") == before, "the teacher is as it was")
        run_ok(["compress", "quantize", out, "--scheme", "weight-only", "--out", folder / "both.safetensors"])
        check((folder / "both.safetensors").stat().st_size < out.stat().st_size, "both")
        table = run_ok(["compress", "distill", folder / "teacher", "--student", "fc:hidden=16", "--steps", "4", "--workers", "2",
                        "--out", folder / "two.safetensors", "--quiet"])
        check("teacher" in table and "student" in table and "1 sample, one thread" in table, table)
        check(len(tensors(folder / "two.safetensors")) == 4, "of two ranks")


def test_defaults_learn():
    """A short form of bench/defaults.py; its whole table is made by hand."""
    script = pathlib.Path(__file__).resolve().parents[2] / "bench/defaults.py"
    done = subprocess.run([sys.executable, script, "--short", "--families", "cnn", "--optimizers", "momentum", "--verbs", "train,taught,prune",
                           "--json"], capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    check(done.returncode == 0 and [row["verdict"] for row in rows] == ["learns"] * 3, done)
    check(all(0 <= row["error"] < 0.5 * row["guess"] for row in rows), rows)


def test_a_training_that_learnt_nothing_says_so_in_its_last_line():
    with Folder() as folder:
        train = ["train", *TEACHER, "--lr", "1e-9", "--steps", "100", "--quiet"]
        code, _, err = run([*train, "--run", folder / "run"])
        check(code == 0 and "better than always answering" in err.splitlines()[-1] and "--lr" in err.splitlines()[-1], err)
        done = next(json.loads(line) for line in reversed((folder / "run/metrics.jsonl").read_text().splitlines()) if '"done"' in line)
        check("better than always answering" in done["learnt_nothing"] and 0.5 < done["guess_val_error"] <= 0.75, done)
        distill = ["compress", "distill", folder / "run", "--student", "cnn:width=0.125", "--steps", "3", "--out", folder / "s.safetensors"]
        code, out, err = run(distill)
        check(code == 0 and "better than always answering" in err.splitlines()[-1], err)
        check("better than always answering" in run_ok([*distill, "--json"])[-1]["learnt_nothing"], "the same command again")


def test_a_rate_that_fits_the_student():
    """The teacher's rate is that of its family and optimizer; with another optimizer it would be a hundred times too large."""
    with Folder() as folder:
        trained(folder / "teacher", "--model", "fc:hidden=8", *PICTURES, "--optimizer", "momentum", "--lr", "0.06", "--steps", 4)
        for name, words, rate in (("same", [], 0.06), ("adam", ["--optimizer", "adam"], 0.002), ("given", ["--optimizer", "adam", "--lr", "0.5"], 0.5)):
            lines = run_ok(["compress", "distill", folder / "teacher", "--student", "fc:hidden=4", "--steps", "2", *words,
                            "--out", folder / f"{name}.safetensors", "--json"])
            check(abs(lines_of(lines, "start")[0]["optimizer"]["lr"] - rate) < 1e-9, (name, lines))


def test_what_is_bad_is_one_line():
    with Folder() as folder:
        trained(folder / "teacher", *TEACHER, "--steps", 4)
        trained(folder / "text", "--model", "transformer:width=16,layers=1,heads=2", *TEXT, "--steps", 2)
        trained(folder / "six", "--model", "fc:hidden=8", "--data", "synthetic:1x8x8,classes=6,samples=330", "--global-batch", "32", "--steps", 2)
        (folder / "cut.safetensors").write_bytes(b"\0" * 20)
        (folder / "a.csv").write_text("a,y\n" + "".join(f"{i},{i * i}\n" for i in range(90)))
        new = ["--steps", 2, "--run", folder / "new"]
        for workers in ([], ["--workers", 2]):
            train = ["train", *STUDENT, *new, *workers]
            refused([*train, "--teacher", folder / "none"], "--teacher ", "none")
            refused([*train, "--teacher", folder / "cut.safetensors"], "--teacher ", "cut.safetensors")
            refused([*train, "--teacher", folder / "text"], "--teacher ", "text of ", "[1, 8, 8], 4 classes")
            refused([*train, "--teacher", folder / "six"], "--teacher ", "6 classes", "4 classes")
            for option, value in () if workers else (("--alpha", "1.5"), ("--alpha", "-0.1"), ("--temperature", "0"), ("--temperature", "-1"),
                                                     ("--teacher-answers", "sometimes")):
                refused([*train, "--teacher", folder / "teacher", option, value], option)
            refused([*train, "--teacher", folder / "teacher", "--teacher-answers", "cached", "--augment", "flip"], "--teacher-answers cached", "--augment")
            refused([*train, "--temperature", "2"], "--temperature 2", "--teacher")
        refused([*train, "--teacher", folder / "teacher", "--teacher-answers", "beside", "--layout", "sync=async"],
                "--teacher-answers beside with sync=async is not supported", "use cached, or live")
        refused(["train", "--model", "fc:hidden=4", "--data", f"csv:{folder / 'a.csv'},target=y,task=regression", "--global-batch", "8", *new,
                 "--teacher", folder / "teacher"], "--teacher ", "numbers to predict")
        check(not (folder / "new").exists(), "a refused run leaves no folder")
        # Weights that are damaged are found where they are read.
        shutil.copytree(folder / "teacher", folder / "bad", symlinks=True)
        (piece,) = list((folder / "bad/checkpoints").glob("step-*/*.safetensors"))
        raw = bytearray(piece.read_bytes())
        raw[-3] ^= 1
        piece.write_bytes(raw)
        refused(["train", *STUDENT, *new, "--teacher", folder / "bad"], "--teacher ")
        distill = ["compress", "distill", folder / "teacher", "--out", folder / "x.safetensors"]
        refused(distill, "--student")
        refused([*distill, "--student", "nosuch"], "nosuch")
        refused([*distill[:3], "--student", "fc"], "--out")
        refused([*distill, "--student", "fc:hidden=8", "--alpha", "2"], "--alpha")
        refused([*distill, "--student", "fc:hidden=8", "--bits", "8"], "--bits")
        check(not (folder / "x.safetensors").exists() and not (folder / "x.run").exists(), "nothing is left")


if __name__ == "__main__":
    main(globals())

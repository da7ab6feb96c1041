"""`cohort train`: lines, files, exit codes."""
import json
import os
import pathlib
import subprocess
import sys

from support import COHORT, Folder, TINY, check, checkpoint_of, main, run, run_ok, skip, start, finish, wait_for, children


def test_lines_and_files():
    with Folder() as folder:
        lines = run_ok(["train", *TINY, "--workers", 2, "--steps", 40, "--checkpoint-every", 10, "--eval-every", 20, "--run", folder / "run", "--json"])
        events = [line["event"] for line in lines]
        check(events[0] == "start" and events[-1] == "done", events)
        check(lines[0]["world_size"] == 2 and lines[0]["layout"]["dp"] == 2 and lines[0]["train_samples"] > 0 and lines[0]["parameters"] == 64 * 16 + 16 + 16 * 4 + 4, lines[0])
        steps = [line for line in lines if line["event"] == "step"]
        check([line["step"] for line in steps] == list(range(1, 41)), "one line a step")
        for key in ("loss", "step_seconds", "samples_per_second"):
            check(all(isinstance(line[key], (int, float)) for line in steps), key)
        check(steps[-1]["loss"] < 0.7 * steps[0]["loss"], "the loss must fall")
        check([line["step"] for line in lines if line["event"] == "eval"] == [20, 40], "evaluations")
        check([line["step"] for line in lines if line["event"] == "checkpoint"] == [10, 20, 30, 40], "checkpoints")
        done = lines[-1]
        check(done["step"] == 40 and len(done["peak_memory_bytes"]) == 2 and done["predicted_step_seconds"] is None and done["measured_step_seconds"] > 0, done)
        check(done["run"] == str(folder / "run"), done["run"])
        names = {path.name for path in (folder / "run").iterdir()}
        check({"config.toml", "metrics.jsonl", "metrics.csv", "checkpoints", "events", "report.html"} <= names, names)
        kept = sorted(path.name for path in (folder / "run/checkpoints").iterdir())
        check(kept == ["best", "latest", "step-000000030", "step-000000040"], kept)
        check(checkpoint_of(folder / "run").name == "step-000000040", "latest")
        check("<html" in (folder / "run/report.html").read_text(), "report")
        info = run_ok(["checkpoint", "info", folder / "run", "--json"])[0]
        check("verify" and json.loads(run_ok(["checkpoint", "verify", folder / "run"]))["ok"] is True, info)


def test_same_losses_for_every_number_of_workers():
    with Folder() as folder:
        losses = []
        for workers in (1, 2, 3, 4):
            lines = run_ok(["train", *TINY, "--workers", workers, "--steps", 20, "--run", folder / str(workers), "--json"])
            losses.append([line["loss"] for line in lines if line["event"] == "step"])
        for workers, found in zip((2, 3, 4), losses[1:]):
            worst = max(abs(a - b) / a for a, b in zip(losses[0], found))
            check(worst < 1e-4, f"{workers} workers: the loss differs by {worst}")


def test_steps_that_a_fixed_loss_scale_loses_are_told():
    with Folder() as folder:
        fp16 = ["train", *TINY, "--precision", "fp16", "--quiet", "--json", "--workers", 2, "--steps", 5]
        code, out, err = run([*fp16, "--loss-scale", "1e15", "--run", folder / "fixed"])
        done = json.loads(out.splitlines()[-1])
        check(code == 0 and err.count("step 1 was skipped: its gradients overflowed fp16 with the fixed --loss-scale 1e+15") == 1 and err.count("was skipped") == 1, err)
        check(done["skipped_steps"] == 5 and "5 of them skipped (fp16 overflow)" in err, (done, err))
        check("Skipped steps" in (folder / "fixed/report.html").read_text(), "the report says it")
        code, out, err = run([*fp16, "--loss-scale", "8", "--run", folder / "small"])
        check(code == 0 and json.loads(out.splitlines()[-1])["skipped_steps"] == 0 and "skipped" not in err, err)


def test_goal_stops_early():
    with Folder() as folder:
        lines = run_ok(["train", *TINY, "--workers", 2, "--steps", 400, "--eval-every", 10, "--goal", "val_error<0.2", "--run", folder / "run", "--json"])
        check(lines[-1]["val_error"] < 0.2 and lines[-1]["step"] < 400, lines[-1])


def test_file_and_options():
    with Folder() as folder:
        (folder / "c.toml").write_text('model = "fc:hidden=8"\ndata = "synthetic:1x8x8,classes=4,samples=256"\nsteps = 3\nlr = 0.01\nworkers = 2\n')
        lines = run_ok(["train", folder / "c.toml", "--lr", "0.02", "--run", folder / "run", "--json"])
        check(lines[0]["world_size"] == 2 and lines[-1]["step"] == 3, lines[-1])
        written = (folder / "run/config.toml").read_text()
        check("lr = 0.02" in written and 'model = "fc:hidden=8"' in written, written)
        again = run_ok(["train", folder / "run/config.toml", "--run", folder / "again", "--json"])
        check([line["loss"] for line in again if line["event"] == "step"] == [line["loss"] for line in lines if line["event"] == "step"], "the written configuration repeats the run")


def test_text_writes_a_sample():
    with Folder() as folder:
        (folder / "text").mkdir()
        (folder / "text/a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 80)
        (folder / "text/b.txt").write_text("pack my box with five dozen liquor jugs. " * 80)
        run_ok(["train", "--model", "transformer:width=32,layers=1,heads=2", "--data", f"text:{folder / 'text'}", "--context", 32, "--workers", 2, "--optimizer", "adamw", "--lr", "0.01",
                "--steps", 60, "--global-batch", 16, "--sample-bytes", 50, "--run", folder / "run", "--json"])
        sample = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines() if '"event":"sample"' in line]
        check(len(sample) == 1 and len(sample[0]["text"]) > 20, sample)


def test_an_existing_run_is_not_overwritten():
    with Folder() as folder:
        arguments = ["train", *TINY, "--steps", 2, "--run", folder / "run"]
        run_ok(arguments)
        before = (folder / "run/metrics.jsonl").read_bytes()
        code, _, err = run(arguments)
        check(code == 2 and "already holds a run" in err, err)
        check((folder / "run/metrics.jsonl").read_bytes() == before, "untouched")


def test_a_refused_resume_changes_nothing():
    with Folder() as folder:
        run_ok(["train", *TINY, "--steps", 2, "--quiet", "--run", folder / "run"])
        before = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}
        code, _, err = run(["train", folder / "run/config.toml", "--resume", "--model", "fc:hidden=17"])
        check(code == 2 and "fc:hidden=17" in err, err)
        check({path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()} == before, "the run's files changed")
        run_ok(["train", folder / "run/config.toml", "--resume", "--steps", 3, "--quiet"])
        check("steps = 3\n" in (folder / "run/config.toml").read_text(), "what it went on with is written")


def test_a_loss_that_is_not_finite_ends_the_run():
    with Folder() as folder:
        code, _, err = run(["train", *TINY[:6], "--workers", 2, "--lr", "1e6", "--steps", 200, "--run", folder / "run"])
        check(code == 1 and "not finite" in err and "--lr" in err, f"{code} {err}")


def test_a_validation_loss_that_is_not_finite_ends_the_run_and_keeps_what_was_saved():
    with Folder() as folder:
        # The second step ruins the weights for good, and no training loss is computed from those.
        base = ["train", "--model", "cnn:conv1=4,conv2=8,hidden=32", "--data", "synthetic:1x12x12,samples=400", "--global-batch", 31, "--lr", "1e6", "--steps", 2, "--checkpoint-every", 1, "--quiet"]
        for workers in (1, 2):
            run_folder = folder / str(workers)
            code, _, err = run([*base, "--workers", workers, "--run", run_folder])
            check(code == 1 and "the validation loss is not finite (nan) at step 2;" in err and "done" not in err, f"{code} {err}")
            kept = sorted(path.name for path in (run_folder / "checkpoints").iterdir())
            check(kept == ["latest", "step-000000001"], kept)


def test_how_few_samples_a_norm_has_is_said_as_it_is():
    with Folder() as folder:
        for batch in (16, 64):  # Groups of 4 stay together, whatever the batch.
            code, _, err = run(["train", "--model", "resnet50:width=1,norm=ghost,ghost=4", "--data", "synthetic:1x12x12,samples=128", "--global-batch", batch, "--workers", 2, "--steps", 1, "--run", folder / str(batch)])
            check(code == 0 and "from 4 samples (a batch of" in err, err)


def test_a_rank_that_is_stopped_before_its_first_step():
    script = "if [ $RANK = 1 ]; then kill -STOP $$; else sleep 0.2; exit 3; fi"
    code, _, err = run(["launch", "-n", 2, "sh", "-c", script])
    check(code == 3 and "(SIGSTOP); the other ranks were ended" in err, f"{code} {err}")


def test_the_last_of_two_options_counts():
    with Folder() as folder:
        run_ok(["train", *TINY, "--workers", 2, "--workers", 1, "--steps=9", "--steps", 1, "--quiet", "--run", folder / "run"])
        written = (folder / "run/config.toml").read_text()
        check("workers = 1\n" in written and "steps = 1\n" in written, written)
        # The file and the command line are two places, and what a program that is launched takes is its own.
        (folder / "c.toml").write_text("workers = 3\nsteps = 1\n")
        run_ok(["train", folder / "c.toml", *TINY, "--workers", 2, "--quiet", "--run", folder / "two"])
        check("workers = 2\n" in (folder / "two/config.toml").read_text(), "the command line counts")
        run_ok(["launch", "-n", 2, "sh", "-c", "test $# = 4", "sh", "-n", "1", "-n", "2"])


def test_bad_input_is_exit_code_2_and_one_line():
    with Folder() as folder:
        (folder / "empty").mkdir()
        (folder / "broken").mkdir()
        (folder / "broken/train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03\x00\x00\x00\x05\x00\x00\x00\x1c\x00\x00\x00\x1c" + bytes(100))
        (folder / "broken/train-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x05" + bytes(5))
        (folder / "plugin.so").write_text("not a library")
        run_ok(["train", *TINY, "--steps", 1, "--quiet", "--run", folder / "tiny"])
        (folder / "bad.toml").write_text("steps = 3\nlearning_rate = 1\n")
        for arguments, expected in [
            (["train", "--data", f"mnist:{folder}/nowhere"], "nowhere"),
            (["train", "--data", f"mnist:{folder}/empty"], "empty"),
            (["train", "--data", f"mnist:{folder}/broken"], "train-images-idx3-ubyte"),
            (["train", "--data", f"text:{folder}/nothing.txt"], "nothing.txt"),
            (["train", "--data", "minst:x"], "minst"),
            (["train", "--model", "cnnn", *TINY[2:]], "cnnn"),
            (["train", "--model", "fc:hiden=3", *TINY[2:]], "hiden"),
            (["train", "--model", "transformer", *TINY[2:]], "transformer"),
            (["train", *TINY, "--workers", "two"], "two"),
            (["train", *TINY, "--workers", 2, "--layout", "dp=3"], "dp=3"),
            (["train", *TINY, "--layout", "sync=queue:oldest"], "queue:newest"),
            (["train", *TINY, "--layout", "schedule=x"], "schedule=x would do nothing here: it acts with pp=2 or more"),
            (["train", *TINY, "--layout", "schedule=gpipe"], "schedule=gpipe would do nothing"),
            (["train", *TINY, "--layout", "split=3/7", "--workers", 2], "split=3/7 would do nothing"),
            (["train", *TINY, "--layout", "dp=2,dp=2"], "dp is given twice"),
            (["train", *TINY, "--workers", 2, "--inject", "kill:9:1"], "there is no rank 9, the last of 2 is rank 1"),
            (["train", *TINY, "--prompt", "Once"], "--prompt Once would do nothing here: it acts for text"),
            (["train", *TINY, "--layout", "tp=2", "--label-smoothing", "0.1"], "with tp is not supported"),
            (["train", "--model", "cnnn", *TINY[2:], "--workers", 2], "error: there is no model 'cnnn'"),
            (["train", "--model", "fc:hiden=3", *TINY[2:], "--workers", 2], "error: model fc"),
            (["train", *TINY[:4], "--global-batch", 1, "--workers", 2], "error: --global-batch 1 leaves some of 2 ranks without samples"),
            (["train", "--model", "resnet50:width=1,norm=ghost,ghost=8", *TINY[2:4], "--global-batch", 8, "--workers", 2], "error: a global batch of 8 leaves rank 1"),
            (["checkpoint", "export", folder / "tiny", "--out", "/proc/x"], "/proc"),
            (["checkpoint", "export", folder / "tiny", "--out", folder / "none" / "x"], "none"),
            (["checkpoint", "export", folder / "tiny", "--out", folder / "empty"], "empty"),
            (["train", *TINY, "--no-such-option"], "no-such-option"),
            (["train", *TINY, "--resume", "--run", folder / "no-run"], "no run"),
            (["train", *TINY, "--plugin", folder / "plugin.so"], "plugin.so"),
            (["train", folder / "bad.toml"], "bad.toml:2"),
            (["train", folder / "missing.toml"], "missing.toml"),
            (["tarin"], "train"),
            (["plan"], "plan: no model given"),
            (["report", folder / "empty"], "empty"),
            (["checkpoint", "info", folder / "empty"], "empty"),
            (["launch", "-n", 2, "./no-such-program"], "no-such-program"),
            (["launch", "./x"], "-n N"),
            (["launch", "-n", 0, "true"], "error: -n 0:"),
            (["bench", "nothing"], "bench"),
            (["bench", "step", "--workload", "huge"], "huge"),
        ]:
            code, out, err = run(arguments, cwd=folder)
            lines = [line for line in err.splitlines() if "error" in line]
            check(code == 2 and len(err.splitlines()) == 1 and lines and expected in err, f"{arguments}: exit code {code}\n{err}")
        check(not (folder / "runs").exists() or not any((folder / "runs").iterdir()), "bad input leaves no run folder")


def test_a_message_never_controls_the_terminal():
    with Folder() as folder:
        (folder / "bad.toml").write_bytes(b'optimizer = "a\\u001b[31m"\nlr = 1\n')
        (folder / "worse.toml").write_bytes(b"json = t\x07\xff\n\n")
        (folder / "layout.json").write_bytes(b'{"dp\\u001b[2J": 2}')
        for arguments in (["train", folder / "bad.toml"], ["train", folder / "worse.toml"], ["train", "--layout", folder / "layout.json"], ["train", "--model", "x\x1b[2J", *TINY[2:]], ["tr\x1b[2Jain"]):
            code, _, err = run(arguments, cwd=folder)
            check(code == 2 and len(err.splitlines()) == 1 and err[:-1].isprintable(), f"{arguments}: exit code {code}\n{err!r}")


def test_an_export_opens_in_python():
    with Folder() as folder:
        run_ok(["train", "--model", "transformer:width=16,layers=1,heads=2,tied=1", "--data", "synthetic:text", "--context", 8, "--global-batch", 8, "--steps", 2, "--run", folder / "run"])
        run_ok(["checkpoint", "export", folder / "run", "--out", folder / "model.safetensors"])
        script = pathlib.Path(__file__).parent.parent / "parity/safetensors_python.py"
        result = subprocess.run([os.environ.get("COHORT_PYTHON", sys.executable), str(script), str(folder / "model.safetensors")], capture_output=True, text=True)
        if result.returncode == 77:
            skip(result.stderr)
        check(result.returncode == 0 and '"embedding.token.weight"' in result.stdout and '"output.weight"' in result.stdout, result.stdout + result.stderr)


def test_a_loss_that_is_not_finite_names_the_first_tensor():
    wild = ["train", "--model", "fc:hidden=32,layers=3", "--data", "synthetic:1x8x8,classes=4,samples=512", "--global-batch", 32, "--lr", "1e6", "--steps", 100, "--quiet"]
    with Folder() as folder:
        for name, how, names in (("dp", ["--workers", 2], "the first tensor that is not finite: "), ("async", ["--virtual", "workers=3,compute=0.01", "--layout", "sync=async"], "the output of layer '"),
                                 ("pp", ["--workers", 2, "--layout", "pp=2"], "all weights of this rank are finite"), ("zero", ["--workers", 2, "--layout", "zero=3"], "is not finite")):
            code, out, err = run([*wild, *how, "--run", folder / name])
            check(code == 1 and "is not finite (nan)" in err and names in err, f"{how}: {code}\n{err}")


def test_a_run_says_whether_its_compression_pays():
    with Folder() as folder:
        for compress in ("int8", "topk:0.1"):
            run_ok(["train", *TINY, "--workers", 2, "--steps", 20, "--layout", f"compress={compress}", "--run", folder / compress[:4]])
            lines = [json.loads(line) for line in (folder / compress[:4] / "metrics.jsonl").read_text().splitlines()]
            advice = [line for line in lines if line["event"] == "exchange_advice"]
            check(len(advice) == 1 and advice[0]["sentence"].startswith(f"compress={compress} "), advice)
            rows = {row["compress"]: row["predicted_step_seconds"] for row in advice[0]["rows"]}
            done = [line for line in lines if line["event"] == "done"][0]
            check(rows[compress] == done["measured_step_seconds"] and rows["none"] > 0, (rows, done))
            check(advice[0]["sentence"].split(":")[0] in (folder / compress[:4] / "report.html").read_text(), "the report says it")


def test_help_begins_with_examples():
    for verb in ("train", "verify", "launch", "doctor", "checkpoint", "report", "vocabulary", "bench"):
        out = run_ok([verb, "-h"])
        check(out.startswith("Examples:\n  cohort " if verb != "doctor" else "Examples:\n"), out[:200])
    check("fashion-mnist" in run_ok(["-h"]), "overview")
    check("gloo" in run_ok(["doctor"]), "doctor")


def test_nothing_listens_beyond_loopback():
    """Sockets of a running job's processes: none listens on another address than 127.0.0.1."""
    with Folder() as folder:
        process = start(["train", *TINY, "--workers", 2, "--steps", 1000000, "--run", folder / "run", "--quiet"])
        try:
            wait_for(lambda: (folder / "run/metrics.jsonl").exists(), "the first lines")
            inodes = set()
            for pid in [process.pid, *children(process.pid)]:
                for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                    try:
                        target = str(descriptor.readlink())
                    except OSError:
                        continue
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
            listeners = []
            for table in ("tcp", "tcp6"):
                for line in pathlib.Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and fields[9] in inodes:
                        listeners.append(fields[1])
            check(all(address.startswith("0100007F:") for address in listeners), f"listening: {listeners}")
        finally:
            process.terminate()
            finish(process)


if __name__ == "__main__":
    main(globals())

"""Using trained models: evaluate prints what the training printed, under every layout; exported files work alike in C++ and Python; predictions
and generated text; every bad input is refused in one line and prints nothing."""
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys

from support import COHORT, Folder, TINY, check, checkpoint_of, main, run, run_ok, skip

PICTURES = ["--data", "synthetic:1x8x8,classes=4,samples=330,noise=3", "--global-batch", "32"]
TEXT = ["--model", "transformer:width=16,layers=2,heads=2", "--data", "synthetic:text,samples=120", "--context", "24", "--global-batch", "16",
        "--sample-bytes", "0"]


def train(folder, *arguments):
    """The lines of a training into `folder`."""
    return run_ok(["train", *map(str, arguments), "--run", folder, "--threads", "1", "--json"])


def lines_of(lines, event):
    return [line for line in lines if line["event"] == event]


def evaluated(*arguments):
    return run_ok(["evaluate", *map(str, arguments), "--json"])[-1]


def refused(arguments, *parts, code=2, **options):
    """One line on stderr that says these parts, and nothing on stdout."""
    got, out, err = run(arguments, **options)
    check(got == code, f"{arguments}: exit code {got}\n{err}")
    check(out == "", f"{arguments} printed {out[:300]}")
    told = [line for line in err.splitlines() if "error:" in line]
    check(len(err.splitlines()) == 1 and len(told) == 1, f"{arguments}: {err}")
    for part in parts:
        check(str(part) in err, f"{arguments}: '{part}' is not in {err}")


# Each with what its evaluation may differ by: ranks that divided a layer added in another order.
LAYOUTS = [
    (["--model", "cnn:width=0.125", *PICTURES], 0),
    (["--model", "cnn:width=0.125", *PICTURES, "--workers", "3", "--precision", "bf16"], 0),
    (["--model", "vgg11:width=2,hidden=8,norm=batch", "--data", "synthetic:1x16x16,classes=4,samples=330,noise=3", "--global-batch", "32",
      "--workers", "2", "--layout", "zero=3", "--sync-batch-norm"], 0),
    (["--model", "fc:hidden=16,layers=2", *PICTURES, "--workers", "4", "--layout", "dp=2,pp=2,microbatches=2"], 0),
    ([*TEXT, "--workers", "2", "--layout", "tp=2"], 1e-5),
    (["--model", "fc:hidden=16", *PICTURES, "--workers", "2", "--layout", "sync=local:4"], 0),
    (["--model", "fc:hidden=16", *PICTURES, "--workers", "2", "--layout", "sync=async"], 0),
    (["--model", "fc:hidden=16", *PICTURES, "--layout", "sync=async", "--virtual", "workers=3,compute=1"], 0),
]


def test_evaluate_says_what_the_training_said():
    for number, (arguments, bound) in enumerate(LAYOUTS):
        with Folder() as folder:
            lines = train(folder / "run", *arguments, "--steps", "12", "--eval-every", "4", "--keep-checkpoints", "3")
            evals = {line["step"]: line for line in lines_of(lines, "eval")}
            check(len(evals) == 3 and len({line["val_loss"] for line in evals.values()}) == 3, evals)
            for step, line in evals.items():
                found = evaluated(folder / "run", "--checkpoint", step)
                check(abs(found["loss"] - line["val_loss"]) <= bound * line["val_loss"], f"layout {number}: {found} {line}")
                check(found["error"] == line["val_error"], f"layout {number}: {found} {line}")
                check(found["step"] == step and found["split"] == "val", found)
            check(evaluated(folder / "run")["step"] == 12, "the newest is the default")


def test_parts_of_the_data_and_other_data():
    with Folder() as folder:
        lines = train(folder / "run", *TINY, "--steps", "20")
        start = lines_of(lines, "start")[0]
        train_part, val, both = (evaluated(folder / "run", "--split", part) for part in ("train", "val", "all"))
        check((train_part["samples"], val["samples"]) == (start["train_samples"], start["val_samples"]), (start, train_part, val))
        check(both["samples"] == train_part["samples"] + val["samples"], both)
        mean = (train_part["loss"] * train_part["samples"] + val["loss"] * val["samples"]) / both["samples"]
        check(abs(both["loss"] - mean) < 1e-6 * mean, (both, mean))
        other = evaluated(folder / "run", "--data", "synthetic:1x8x8,classes=4,samples=90,noise=4")
        check(other["loss"] != val["loss"] and other["samples"] == 9, other)
        # The table says the same as the matrix, and both as the error.
        shown = run_ok(["evaluate", folder / "run", "--json"])
        counts = lines_of(shown, "confusion")[0]["counts"]
        right = sum(counts[i][i] for i in range(4))
        check(abs(1 - right / val["samples"] - val["error"]) < 1e-12, (counts, val))
        check([line["right"] for line in lines_of(shown, "class")] == [counts[i][i] for i in range(4)], shown)
        check([line["taken_for"] for line in lines_of(shown, "class")] == [sum(row[i] for row in counts) for i in range(4)], shown)
        text = run_ok(["evaluate", folder / "run"])
        check("accuracy" in text and "most often taken for" in text and f"{val['samples']} samples" in text, text)
        # A run's data that are others now are told of.
        shutil.copytree(folder / "run", folder / "moved")
        config = checkpoint_of(folder / "moved") / "manifest.json"
        check("samples=512" in config.read_text(), "the config is in the manifest")


def test_evaluate_refuses():
    with Folder() as folder:
        train(folder / "run", *TINY, "--steps", "12", "--eval-every", "4", "--keep-checkpoints", "3")
        base = ["evaluate", folder / "run"]
        refused(["evaluate"], "no model given")
        refused(["evaluate", folder / "none"], folder / "none", "does not exist")
        refused(["evaluate", folder], "holds no checkpoint")
        refused([*base, "--split", "tst"], "did you mean 'test'")
        refused([*base, "--split", "test"], "has no test set")
        refused([*base, "--checkpoint", "7"], "no checkpoint of step 7", "12, 8, 4")
        refused([*base, "--checkpoint", "bset"], "did you mean 'best'")
        refused([*base, "--data", "synthetic:1x9x9,classes=4"], "[1, 9, 9]", "[1, 8, 8]")
        refused([*base, "--data", "synthetic:1x8x8,classes=5"], "5 classes", "4 classes")
        refused([*base, "--data", "synthetic:text"], "text", "[1, 8, 8]")
        refused([*base, "--lr", "1"], "does not read --lr")
        damaged = folder / "run" / "checkpoints" / "step-000000012" / "rank-00000.safetensors"
        raw = bytearray(damaged.read_bytes())
        raw[-1] ^= 1
        damaged.write_bytes(raw)
        refused(base, "step-000000012 is damaged", "--checkpoint 8")
        check(evaluated(*base[1:], "--checkpoint", "8")["step"] == 8, "the one before is whole")
        refused(["evaluate", folder / "run" / "checkpoints" / "step-000000008", "--checkpoint", "4"], "is one checkpoint already")
        # A model that this program does not have.
        manifest = folder / "run" / "checkpoints" / "step-000000008" / "manifest.json"
        (folder / "x.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"{}")
        refused(["evaluate", folder / "x.safetensors"], "its header has no \"step\"")
        (folder / "y.safetensors").write_bytes(b"nothing of the kind")
        refused(["evaluate", folder / "y.safetensors"], "y.safetensors")
        check(manifest.exists(), manifest)


def test_a_model_of_a_plug_in_needs_it():
    plugin = pathlib.Path(os.environ["COHORT_AWKWARD_MODELS"])
    with Folder() as folder:
        copy = folder / "models.so"
        shutil.copy(plugin, copy)
        train(folder / "run", "--plugin", copy, "--model", "plain", "--data", "synthetic:1x8x8,classes=4,samples=96", "--global-batch", "16", "--steps", "2")
        loss = evaluated(folder / "run")["loss"]
        run_ok(["checkpoint", "export", folder / "run", "--out", folder / "m.safetensors"])
        refused(["evaluate", folder / "m.safetensors"], "the model plain", "--plugin FILE.so", str(copy))
        check(abs(evaluated(folder / "m.safetensors", "--plugin", plugin)["loss"] - loss) < 1e-12, "the exported file with its plug-in")
        copy.unlink()
        refused(["evaluate", folder / "run"], "--plugin", str(copy))
        check(evaluated(folder / "run", "--plugin", plugin)["loss"] == loss, "the run with a plug-in that is named")


def test_exported_files():
    with Folder() as folder:
        lines = train(folder / "run", "--model", "mlp-small", "--data", "synthetic:1x28x28,samples=512,noise=4", "--global-batch", "32",
                      "--steps", "30", "--eval-every", "10",
                      "--lr", "0.05")
        best = min(lines_of(lines, "eval"), key=lambda line: line["val_loss"])
        for name in ("m.onnx", "m.pt", "m.pth", "m.bin", "m"):
            refused(["checkpoint", "export", folder / "run", "--out", folder / name], name, "safetensors is what is written")
            check(not (folder / name).exists(), name)
        out = folder / "m.safetensors"
        run_ok(["checkpoint", "export", folder / "run", "--checkpoint", "best", "--out", out])
        raw = out.read_bytes()
        about = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
        check(about["model"] == "mlp-small" and about["step"] == str(best["step"]) and about["precision"] == "fp32", about)
        check(json.loads(about["val_loss"]) == best["val_loss"] and json.loads(about["data"])["shape"] == [1, 28, 28], about)
        found = evaluated(out)
        check((found["loss"], found["error"]) == (best["val_loss"], best["val_error"]), (found, best))
        # C++ and Python give the same numbers, to the last digit that tells two floats apart.
        program = pathlib.Path(COHORT).parent / "examples" / "use_model"
        asked = subprocess.run([program, out], capture_output=True, text=True)
        check(asked.returncode == 0 and len(asked.stdout.splitlines()) == 4, asked)
        check(asked.stdout == subprocess.run([program, folder / "run" / "checkpoints" / "best"], capture_output=True, text=True).stdout, "file and folder")
        other = subprocess.run([program, folder / "run" / "checkpoints" / f"step-{30:09}"], capture_output=True, text=True).stdout
        check((other == asked.stdout) == (best["step"] == 30), "another step answers otherwise")
        try:
            import safetensors
            import torch
        except ImportError as missing:
            skip(f"{missing}")
        reader = pathlib.Path(__file__).resolve().parents[2] / "examples" / "use_model.py"
        python = subprocess.run([sys.executable, reader, out], capture_output=True, text=True)
        check(python.returncode == 0 and python.stdout == asked.stdout, f"{python.stdout}\n{asked.stdout}\n{python.stderr}")


def test_best_and_patience():
    """The best is the lowest validation loss, kept however old; patience ends the same run on every layout, and counts on after a resume."""
    job = ["--model", "fc:hidden=64", "--data", "synthetic:1x8x8,classes=4,samples=330,noise=6", "--global-batch", "32", "--lr", "0.5", "--eval-every", "5"]
    ends = []
    for layout in ([], ["--workers", "2"], ["--workers", "2", "--layout", "pp=2"], ["--workers", "2", "--layout", "zero=2"]):
        with Folder() as folder:
            lines = train(folder / "run", *job, *layout, "--steps", "300", "--patience", "3", "--checkpoint-every", "1000")
            evals, done = lines_of(lines, "eval"), lines[-1]
            best = min(evals, key=lambda line: line["val_loss"])
            check(done["reason"] == "patience" and done["step"] == best["step"] + 15 < 300, done)
            check((done["best_step"], done["best_val_loss"]) == (best["step"], best["val_loss"]), (done, best))
            check(checkpoint_of(folder / "run", "best").name == f"step-{best['step']:09}", "the pointer")
            found = evaluated(folder / "run", "--checkpoint", "best")
            check(abs(found["loss"] - best["val_loss"]) <= 1e-6 * best["val_loss"] and found["step"] == best["step"], (found, best))
            check(all(eval["step"] <= done["step"] for eval in evals), "nothing after it")
            ends.append(done["step"])
            if not layout:  # A run that was stopped in between ends where one that was not ended.
                train(folder / "parts", *job, "--steps", str(best["step"] + 5))
                again = run_ok(["train", "--run", folder / "parts", "--resume", "--steps", "300", "--patience", "3", "--json"])
                check(again[-1]["step"] == done["step"] and again[-1]["reason"] == "patience", again[-1])
                check(again[-1]["best_step"] == best["step"], again[-1])
    check(len(set(ends)) == 1, ends)
    with Folder() as folder:
        lines = train(folder / "goal", *job, "--steps", "50", "--goal", "val_loss<100")
        check(lines[-1]["reason"] == "goal" and lines[-1]["step"] == 5, lines[-1])
        check(train(folder / "all", *job, "--steps", "10")[-1]["reason"] == "steps", "all steps")
        code, out, _ = run(["train", *job, "--steps", "50", "--lr", "1e6", "--run", folder / "away", "--json"])
        check(code == 1 and json.loads(out.splitlines()[-1])["reason"] == "diverged", out[-500:])
        code, out, _ = run(["train", *job, "--steps", "50", "--workers", "2", "--inject", "kill:1:7", "--run", folder / "killed", "--json"])
        check(code == 4 and json.loads(out.splitlines()[-1])["reason"] == "killed", out[-500:])
        refused(["train", *job, "--steps", "20", "--patience", "4", "--run", folder / "x"], "--patience 4", "has 4 evaluations")


def test_what_has_ended_goes_on_for_something_else_alone():
    with Folder() as folder:
        tiny, reached = ["--model", "fc:hidden=8", "--data", "synthetic:1x8x8,classes=4,samples=300", "--global-batch", 32], {}
        for name, options in (("goal", ["--lr", 0.5, "--steps", 400, "--eval-every", 5, "--goal", "val_loss<0.5"]),
                              ("patience", ["--lr", 0.5, "--optimizer", "adam", "--steps", 4000, "--eval-every", 2, "--patience", 2])):
            done = reached[name] = lines_of(train(folder / name, *tiny, *options), "done")[0]
            check(done["reason"] == name, done)
            before = checkpoint_of(folder / name)
            for _ in range(2):
                again = lines_of(run_ok(["train", "--run", folder / name, "--resume", "--json"]), "done")[0]
                check(again["reason"] == name and again["step"] == done["step"] and again["val_loss"] == done["val_loss"], (again, done))
                check(checkpoint_of(folder / name) == before, "another checkpoint")
        more = lines_of(run_ok(["train", "--run", folder / "goal", "--resume", "--goal", "val_loss<0.05", "--json"]), "done")[0]
        check(more["val_loss"] < 0.05 and more["step"] > reached["goal"]["step"], (more, reached))
        code, _, err = run(["train", "--run", folder / "goal", "--resume", "--init-from", folder / "patience"])
        check(code == 2 and "would do nothing beside --resume" in err and "patience\"" not in (folder / "goal/config.toml").read_text(), err)


def test_a_reader_that_leaves_ends_no_training():
    with Folder() as folder:
        words = " ".join(map(str, ["train", "--model", "fc:hidden=8", "--data", "synthetic:1x8x8,classes=4,samples=300", "--steps", 300,
                                   "--checkpoint-every", "end", "--json"]))
        for workers in (1, 2):
            place = folder / f"run{workers}"
            piped = subprocess.run(["bash", "-c", f"({COHORT} {words} --workers {workers} --run {place}; echo code $? >&2) | head -2 >/dev/null"],
                                   capture_output=True, text=True, timeout=120)
            check("code 0" in piped.stderr and "cannot write the lines of --json" in piped.stderr, piped.stderr)
            check(json.loads((place / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "done" and (place / "checkpoints/latest").exists(),
                  piped.stderr)


def test_workers_that_do_not_wait_lose_patience_too():
    with Folder() as folder:
        for name, layout in (("real", ["--workers", "2", "--layout", "sync=async"]),
                             ("virtual", ["--layout", "sync=async", "--virtual", "workers=3,compute=1"]),
                             ("local", ["--workers", "2", "--layout", "sync=local:5"])):
            lines = train(folder / name, "--model", "fc:hidden=64", "--data", "synthetic:1x8x8,classes=4,samples=330,noise=6", "--global-batch", "32",
                          "--lr", "0.5",
                          "--eval-every", "5", "--steps", "400", "--patience", "3", *layout)
            evals, done = lines_of(lines, "eval"), lines[-1]
            best = min(evals, key=lambda line: line["val_loss"])
            check(done["reason"] == "patience" and done["best_step"] == best["step"] < done["step"] < 400, (name, done))
            check(evaluated(folder / name, "--checkpoint", "best")["loss"] == best["val_loss"], name)


def write_idx(folder, name, count, side, first):
    pixels = bytes((first + 37 * i + 11 * j) % 256 for i in range(count) for j in range(side * side))
    (folder / f"{name}-images-idx3-ubyte").write_bytes(b"".join(n.to_bytes(4, "big") for n in (0x803, count, side, side)) + pixels)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(b"".join(n.to_bytes(4, "big") for n in (0x801, count)) + bytes(i % 10 for i in range(count)))


def test_the_test_set_is_evaluated_once_at_the_end():
    with Folder() as folder:
        data = folder / "data"
        data.mkdir()
        write_idx(data, "train", 200, 8, 0)
        write_idx(data, "t10k", 60, 8, 5)
        job = ["--model", "fc:hidden=16", "--data", f"mnist:{data}", "--global-batch", "20", "--steps", "20"]
        done = train(folder / "run", *job, "--workers", "2")[-1]
        found = evaluated(folder / "run", "--split", "test")
        check((done["test_samples"], done["test_loss"], done["test_error"]) == (60, found["loss"], found["error"]), (done, found))
        check(found["samples"] == 60 and found["loss"] != evaluated(folder / "run")["loss"], found)
        check(train(folder / "few", *job, "--test-samples", "7")[-1]["test_samples"] == 7, "the first seven")
        check("test_samples" not in train(folder / "none", *job, "--test-samples", "0")[-1], "none")
        # What is trained does not depend on it.
        (data / "t10k-images-idx3-ubyte").unlink()
        (data / "t10k-labels-idx1-ubyte").unlink()
        alone = train(folder / "alone", *job, "--workers", "2")[-1]
        check("test_loss" not in alone and alone["val_loss"] == done["val_loss"], alone)
        refused(["evaluate", folder / "run", "--split", "test"], "has no test set")
        refused(["train", *job, "--test-samples", "5", "--run", folder / "y"], "--test-samples 5", "has no test set")
        write_idx(data, "t10k", 60, 9, 5)
        refused(["train", *job, "--run", folder / "x"], "t10k-images-idx3-ubyte", "9x9", "8x8")


def test_predict_pictures_and_text():
    with Folder() as folder:
        data = folder / "data"
        data.mkdir()
        write_idx(data, "train", 200, 8, 0)
        write_idx(data, "t10k", 60, 8, 5)
        train(folder / "run", "--model", "fc:hidden=16", "--data", f"mnist:{data}", "--global-batch", "20", "--steps", "30")
        pictures = data / "t10k-images-idx3-ubyte"
        answers = run_ok(["predict", folder / "run", pictures, "--json"])
        check([line["input"] for line in answers] == [f"{pictures}:{i}" for i in range(60)], answers[:3])
        check(all(0.1 <= line["probability"] <= 1 and line["class"] in "0123456789" for line in answers), answers[:3])
        # They are what evaluate counts: as many of each class are taken for it.
        shown = run_ok(["evaluate", folder / "run", "--split", "test", "--json"])
        for line in lines_of(shown, "class"):
            check(line["taken_for"] == sum(answer["class"] == line["class"] for answer in answers), line)
        rows = run_ok(["predict", folder / "run", pictures, "--batch", "7"]).splitlines()
        check(rows[0] == "input,class,probability" and len(rows) == 61, rows[:2])
        check([row.split(",")[1] for row in rows[1:]] == [line["class"] for line in answers], "CSV and JSON say the same")
        three = run_ok(["predict", folder / "run", pictures, "--top", 3, "--json"])
        for line, answer in zip(three, answers, strict=True):
            odds = [one["probability"] for one in line["classes"]]
            check(line["classes"][0] == {key: answer[key] for key in ("class", "probability")} and odds == sorted(odds, reverse=True)
                  and len({one["class"] for one in line["classes"]}) == 3, line)
        first = run_ok(["predict", folder / "run", pictures, "--top", 3]).splitlines()[:2]
        check(first[0] == "input,class,probability,class_2,probability_2,class_3,probability_3"
              and [float(number) for number in first[1].split(",")[2::2]] == [one["probability"] for one in three[0]["classes"]], first)
        check(abs(sum(one["probability"] for one in run_ok(["predict", folder / "run", pictures, "--top", 99, "--json"])[0]["classes"]) - 1) < 1e-9,
              "all of them, and no more")
        check(run_ok(["predict", folder / "run", pictures, pictures, "--json"])[60:] == answers, "in the order of the inputs")
        refused(["predict", folder / "run"], "no inputs given")
        refused(["predict", folder / "run", pictures, folder / "none.png"], "none.png does not exist")
        refused(["predict", folder / "run", pictures, data], "is a folder")
        refused(["predict", folder / "run", pictures, data / "train-labels-idx1-ubyte"], "train-labels-idx1-ubyte")
        write_idx(data, "large", 2, 9, 5)
        refused(["predict", folder / "run", pictures, data / "large-images-idx3-ubyte"], "[1, 9, 9]", "[1, 8, 8]")
        refused(["sample", folder / "run"], "is not a model of text")

        train(folder / "text", *TEXT, "--steps", "20")
        answers = run_ok(["predict", folder / "text", "ab", "a" * 30, "--json"])
        check([line["input"] for line in answers] == ["ab", "a" * 30], answers)
        check(0 < answers[0]["probability"] < 1 and answers[0]["class"], answers)
        alone = run_ok(["predict", folder / "text", "a" * 24, "--json"])[0]
        check(alone["probability"] == answers[1]["probability"], "the context is the last bytes")
        asked = subprocess.run([COHORT, "predict", folder / "text", "-", "--json"], input="ab\n" + "a" * 30 + "\n", capture_output=True, text=True)
        check([json.loads(line) for line in asked.stdout.splitlines()] == answers, asked)
        refused(["predict", folder / "text", "-", "-"], "given twice")
        asked = subprocess.run([COHORT, "predict", folder / "text", "-"], input=gzip.compress(b"ab\n"), capture_output=True)
        check(asked.returncode == 2 and not asked.stdout and b"compressed with gzip" in asked.stderr and asked.stderr.count(b"\n") == 1, asked)


def test_predict_rows_and_tensors():
    with Folder() as folder:
        table = folder / "rows.csv"
        rows = [(i % 17 / 4, i % 13, ("red", "green")[i % 2], 3 * (i % 17 / 4) - i % 13 + 5 * (i % 2)) for i in range(220)]
        table.write_text("a,b,colour,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
        train(folder / "run", "--model", "fc:hidden=32", "--data", f"csv:{table},target=y,task=regression", "--global-batch", "20", "--steps", "120",
              "--optimizer", "adam", "--lr", "0.01")
        answers = run_ok(["predict", folder / "run", table, "--json"])
        check([line["input"] for line in answers[:2]] == [f"{table}:2", f"{table}:3"] and len(answers) == 220, answers[:2])
        # In the units of the data; and as far from the truth as evaluate says.
        truth = [row[3] for row in rows]
        root = (sum((line["value"] - y) ** 2 for line, y in zip(answers, truth)) / 220) ** 0.5
        deviation = json.loads((folder / "run/data.json").read_text())["targets"][0]["deviation"]
        error = evaluated(folder / "run", "--split", "all")["error"]
        check(abs(root / deviation - error) < 1e-5 * error and error < 0.5, (root, deviation, error))
        # Columns go by their names; standard input and an exported file say the same.
        other = folder / "other.csv"
        other.write_text("y,colour,b,a\n" + "".join(f"0,{row[2]},{row[1]},{row[0]}\n" for row in rows))
        run_ok(["checkpoint", "export", folder / "run", "--out", folder / "m.safetensors"])
        with open(other) as source:
            asked = subprocess.run([COHORT, "predict", folder / "m.safetensors", "-"], stdin=source, capture_output=True, text=True)
        lines = asked.stdout.splitlines()
        check(lines[0] == "input,value" and [float(line.split(",")[1]) for line in lines[1:]] == [line["value"] for line in answers], asked)
        check(lines[1].startswith("stdin:2,"), lines[1])
        # Other data are normalised as the training's were: the same rows moved, and so all wrong by as much.
        moved = folder / "moved.csv"
        moved.write_text("a,b,colour,y\n" + "".join(f"{row[0]},{row[1]},{row[2]},{row[3] + 10}\n" for row in rows))
        there = evaluated(folder / "run", "--data", f"csv:{moved},target=y,task=regression", "--split", "all")["error"]
        far = (sum((line["value"] - y - 10) ** 2 for line, y in zip(answers, truth)) / 220) ** 0.5
        check(abs(far / deviation - there) < 1e-4 * there, (far, deviation, there))
        for text, part in (("a,b,colour\n1,2,red\n1,x,red\n", "bad.csv:3"), ("a,b\n1,2\n", "colour"), ("a,b,colour\n1,2,blue\n", "blue"),
                           ("a,b,colour\n", "no row")):
            (folder / "bad.csv").write_text(text)
            refused(["predict", folder / "run", table, folder / "bad.csv"], part)
        refused(["evaluate", folder / "run", "--data", "synthetic:3,classes=2"], "[3]")

        train(folder / "tensors", "--model", "fc:hidden=8", "--data", "synthetic:6,classes=3,samples=90", "--global-batch", "10", "--steps", "9")
        asked = subprocess.run([COHORT, "predict", folder / "tensors", "-", "--json"], input="1,2,3,4,5,6\n0 0 0 0 0 -1e-3\n", capture_output=True, text=True)
        said = [json.loads(line) for line in asked.stdout.splitlines()]
        check([line["input"] for line in said] == ["stdin:1", "stdin:2"] and all(line["class"] in "012" for line in said), asked)
        asked = subprocess.run([COHORT, "predict", folder / "tensors", "-"], input="1,2,3,4,5,6\n1,2,3\n", capture_output=True, text=True)
        check(asked.returncode == 2 and asked.stdout == "" and "stdin:2" in asked.stderr, asked)


def test_sample():
    with Folder() as folder:
        train(folder / "run", *TEXT, "--steps", "20")
        lstm = ["--model", "lstm:width=8,hidden=16", *TEXT[2:], "--steps", "20"]
        train(folder / "lstm", *lstm)
        for name in ("run", "lstm"):
            def sample(*arguments):
                return run_ok(["sample", folder / name, *arguments, "--json"])[0]["text"]
            text = sample("--prompt", "the", "--bytes", "40", "--seed", "5")
            check(text == sample("--prompt", "the", "--bytes", "40", "--seed", "5") and text != sample("--prompt", "the", "--bytes", "40", "--seed", "6"), text)
            greedy = sample("--prompt", "the", "--bytes", "40", "--temperature", "0")
            check(greedy == sample("--prompt", "the", "--bytes", "40", "--top-k", "1", "--seed", "9"), "the likeliest, each time")
            check(greedy.startswith(sample("--prompt", "the", "--bytes", "10", "--temperature", "0")), "byte after byte")
            # Only the last bytes of a long prompt are seen.
            check(sample("--prompt", "x" * 50 + "a" * 24, "--bytes", "8",
                         "--temperature", "0") == sample("--prompt", "a" * 24, "--bytes", "8", "--temperature", "0"), "context")
            check(len(set(sample("--prompt", "the", "--bytes", "60", "--top-k", "2", "--temperature", "50"))) > 1, "two bytes at least are drawn")
            check(sample("--bytes", "9") == sample("--bytes", "9", "--prompt", "\n"), "no prompt is a line feed")
        out = subprocess.run([COHORT, "sample", folder / "run", "--prompt", "the", "--bytes", "40", "--temperature", "0"], capture_output=True)
        check(out.stdout.startswith(b"the") and len(out.stdout) == 44, out)
        for words, part in ((["--temperature", "-1"], "--temperature -1"), (["--temperature", "nan"], "--temperature nan"), (["--top-k", "257"], "--top-k 257"),
                            (["--bytes", "0"], "--bytes 0"), (["--temperature", "0", "--top-k", "3"], "--top-k would do nothing")):
            refused(["sample", folder / "run", *words], part)


if __name__ == "__main__":
    main(globals())

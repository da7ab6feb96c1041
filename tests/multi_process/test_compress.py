"""`cohort compress`: a run becomes a smaller file, which evaluate, predict and the loader take as they take a run."""
import json
import pathlib
import shutil
import signal

from support import Folder, check, main, run, run_ok, start, steps_in, tensors, wait_for
from test_use_model import lines_of, refused, train

CNN = ["--model", "cnn:conv1=8,conv2=16,hidden=32", "--data", "synthetic:1x12x12,classes=4,samples=900,noise=2", "--global-batch", "32",
       "--lr", "0.05", "--optimizer", "momentum",
       "--steps", "60", "--eval-every", "60"]
RESNET = ["--model", "resnet50:width=4,blocks=1-1", "--data", "synthetic:3x12x12,classes=4,samples=600,noise=2", "--global-batch", "32",
          "--lr", "0.05", "--steps", "30", "--eval-every", "30"]
TEXT = ["--model", "transformer:layers=1,width=32,heads=2", "--data", "synthetic:text,samples=300", "--context", "16", "--global-batch", "16",
        "--optimizer", "adam", "--lr", "0.003",
        "--steps", "30", "--eval-every", "30"]


def quantized(run_folder, out, *options):
    lines = run_ok(["compress", "quantize", run_folder, "--out", out, *options, "--json"])
    (last,) = lines_of(lines, "compress")
    check(lines[-1] == last and last["out"] == str(out) and last["bytes"] == out.stat().st_size, last)
    return last, {line["layer"]: line for line in lines_of(lines, "compress_layer")}


def header_of(path):
    raw = pathlib.Path(path).read_bytes()
    return json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]


def state_of(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_quantize_says_what_the_file_then_does():
    with Folder() as folder:
        done = lines_of(train(folder / "run", *CNN), "done")[0]
        before = state_of(folder / "run")
        exported = folder / "float.safetensors"
        run_ok(["checkpoint", "export", folder / "run", "--out", exported])
        for options in (["--scheme", "static"], ["--scheme", "dynamic"], ["--scheme", "weight-only"],
                        ["--scheme", "weight-only", "--bits", "4", "--group-size", "32"],
                        ["--calibration", "mse"], ["--calibration", "percentile"]):
            out = folder / "small.safetensors"
            last, layers = quantized(folder / "run", out, *options)
            check(last["original_val_error"] == done["val_error"], (last, done))
            # The error that was printed is the error of the file, of the export's size beside it.
            found = run_ok(["evaluate", out, "--json"])[-1]
            check(found["error"] == last["val_error"] and found["loss"] == last["val_loss"], (options, found, last))
            check(abs(last["original_bytes"] - exported.stat().st_size) < 200, (last, exported.stat().st_size))
            check(last["bytes"] < last["original_bytes"], last)
            check(last["val_error"] <= last["original_val_error"] + 0.1, last)
            check(all(last[key] > 0 for key in ("seconds_batch_1", "seconds_batch_64", "original_seconds_batch_1", "original_seconds_batch_64",
                                                "memory_bytes", "original_memory_bytes")), last)
            check(set(layers) == {"conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten", "hidden", "relu3", "output"}, layers)
        # An exported file is a source as a run is, and gives the same file.
        last, layers = quantized(folder / "run", folder / "a.safetensors", "--report", folder / "a.html")
        page = (folder / "a.html").read_text()
        check(all(words in page for words in ("quantize static int8", "memory, 1 sample", *layers, f"{100 * last['val_error']:.2f} %")), page)
        refused(["compress", "quantize", folder / "run", "--out", folder / "c.safetensors", "--report", folder / "none" / "a.html"], "none")
        check(not (folder / "c.safetensors").exists(), "nothing is written")
        quantized(exported, folder / "b.safetensors")
        check(tensors(folder / "a.safetensors") == tensors(folder / "b.safetensors"), "the same tensors from the run and from its export")
        check(header_of(folder / "a.safetensors")["compressed"] == header_of(folder / "b.safetensors")["compressed"], "the same form")
        check(state_of(folder / "run") == before, "the run is as it was")


def test_static_runs_in_int8_from_end_to_end():
    with Folder() as folder:
        train(folder / "run", *CNN)
        last, layers = quantized(folder / "run", folder / "m.safetensors")
        check(layers["conv1"]["done"] == "int8 static, does relu1" and layers["relu1"]["done"] == "done by conv1", layers)
        check(layers["pool1"]["done"] == layers["flatten"]["done"] == "on int8 codes", layers)
        check(layers["output"]["done"] == "int8 static", layers)
        check(layers["hidden"]["bytes"] * 3 < layers["hidden"]["original_bytes"], layers)
        check(layers["conv1"]["loss_increase"] is not None and layers["pool1"]["loss_increase"] is None, layers)
        held = tensors(folder / "m.safetensors")
        check(held["conv1.weight"][:2] == ("I8", (8, 1, 5, 5)) and held["conv1.weight.scale"][:2] == ("F32", (8, 1)), list(held))
        # Batch norms are folded into the convolutions before them, and branches are added as codes.
        train(folder / "norm", *RESNET)
        last, layers = quantized(folder / "norm", folder / "n.safetensors")
        check(layers["stem_conv"]["done"] == "int8 static, does stem_norm, does stem_relu", layers)
        check(any(line["done"].startswith("int8 sum") for line in layers.values()), layers)
        held = tensors(folder / "n.safetensors")
        check(not any("norm" in name for name in held) and "stem_conv.bias" in held, list(held))
        check(run_ok(["evaluate", folder / "n.safetensors", "--json"])[-1]["error"] == last["val_error"], last)


def test_transformers_and_lstms():
    with Folder() as folder:
        train(folder / "run", *TEXT)
        for scheme, bits in (("static", 8), ("dynamic", 8), ("weight-only", 8), ("weight-only", 4)):
            last, layers = quantized(folder / "run", folder / "m.safetensors", "--scheme", scheme, "--bits", bits)
            check(abs(last["val_loss"] - last["original_val_loss"]) < 0.1 * last["original_val_loss"], last)
            check(run_ok(["evaluate", folder / "m.safetensors", "--json"])[-1]["loss"] == last["val_loss"], last)
            if scheme == "dynamic":
                check(layers["block1"]["done"] == "int8 dynamic" and "embedding" in layers["embedding"]["done"], layers)
            text = run_ok(["sample", folder / "m.safetensors", "--bytes", "20", "--seed", "3"])
            check(len(text) > 20, text)
        train(folder / "lstm", "--model", "lstm:width=16,hidden=24", *TEXT[2:])
        last, layers = quantized(folder / "lstm", folder / "l.safetensors", "--scheme", "dynamic")
        check(layers["lstm"]["done"] == "weights int8, computes in floats: no int8 kernel for a layer of kind lstm"
              and layers["output"]["done"] == "int8 dynamic", layers)
        check(layers["lstm"]["bytes"] * 3 <= layers["lstm"]["original_bytes"], layers)
        last, layers = quantized(folder / "lstm", folder / "l.safetensors", "--scheme", "weight-only")
        check(layers["lstm"]["bytes"] * 3 <= layers["lstm"]["original_bytes"], layers)


def test_max_error_increase_decides():
    with Folder() as folder:
        # Four bits with one scale for a whole row lose something here, so that some layers have to stay.
        train(folder / "run", "--model", "cnn:conv1=4,conv2=4,hidden=8", "--data", "synthetic:1x12x12,classes=8,samples=6000,noise=4",
              "--global-batch", "32", "--lr", "0.03", "--optimizer", "momentum",
              "--steps", "400", "--eval-every", "400")
        base = [folder / "run", folder / "m.safetensors", "--scheme", "weight-only", "--bits", "4", "--group-size", "1000",
                "--data", "synthetic:1x12x12,classes=8,samples=8000,noise=4", "--val-samples", "2000"]
        free, all_layers = quantized(*base)
        increase = free["val_error"] - free["original_val_error"]
        check(increase > 0, ("four bits cost something here, or this test tests nothing", free))
        allowed, layers = quantized(*base, "--max-error-increase", f"{50 * increase}%")   # Half of it.
        check(allowed["val_error"] - allowed["original_val_error"] <= increase / 2 + 1e-9, (allowed, increase))
        kept = {name for name, line in layers.items() if line["done"] == "floats: too sensitive"}
        check(kept, layers)
        tried = {name: line["loss_increase"] for name, line in all_layers.items() if line["loss_increase"] is not None}
        check(min(tried[name] for name in kept) >= max(value for name, value in tried.items() if name not in kept),
              ("the most sensitive stay floats", tried, kept))
        check(allowed["bytes"] > free["bytes"], (allowed, free))


def test_predict_takes_a_compressed_file():
    with Folder() as folder:
        train(folder / "run", *CNN)
        quantized(folder / "run", folder / "m.safetensors")
        description = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 12, 12), }".ljust(117) + b"\n"
        raw = bytes([0x93]) + b"NUMPY\x01\x00" + (118).to_bytes(2, "little") + description + bytes(4 * 144)
        (folder / "x.npy").write_bytes(raw)
        answers = [run_ok(["predict", path, folder / "x.npy", "--json"])[0] for path in (folder / "run", folder / "m.safetensors")]
        check(answers[0]["class"] == answers[1]["class"] and abs(answers[0]["probability"] - answers[1]["probability"]) < 0.1, answers)
        check(answers[0]["probability"] != answers[1]["probability"], "codes are not floats: the file was used")


def test_search_takes_the_smallest_within_the_limits():
    with Folder() as folder:
        train(folder / "run", *CNN)
        train(folder / "smaller", *[word.replace("hidden=32", "hidden=8") for word in CNN])
        out, page = folder / "best.safetensors", folder / "tried.html"
        base = ["compress", "search", folder / "run", folder / "smaller", "--out", out]
        lines = run_ok([*base, "--max-error-increase", "10%", "--report", page, "--json"])
        tried, taken = lines_of(lines, "compress_tried"), lines_of(lines, "compress")[0]
        check(len(tried) == 2 * 8 and {line["model"] for line in tried} == {str(folder / "run"), str(folder / "smaller")}, tried)
        limit = tried[0]["val_error"] + 0.1 + 1e-9
        made = [line for line in tried if "bytes" in line and line["way"] != "as it is"]
        fits = [line for line in made if line["val_error"] <= limit]
        check(taken["bytes"] == min(line["bytes"] for line in fits) == out.stat().st_size, (taken, fits))
        check(run_ok(["evaluate", out, "--json"])[-1]["error"] == taken["val_error"], taken)
        front = lines_of(lines, "compress_front")[0]["models"]
        for name in front:  # Nobody beats it.
            (here,) = [line for line in tried if f"{line['model']}, {line['way']}" == name]
            check(not any(line["bytes"] <= here["bytes"] and line["val_error"] < here["val_error"] for line in tried if "bytes" in line), (here, tried))
        check(page.read_text().count("<circle") + page.read_text().count("<use") >= len(made), "points on the page")
        check(sorted(path.name for path in folder.iterdir()) == ["best.safetensors", "run", "smaller", "tried.html"], "nothing else is left")
        # Bytes alone: the least error that fits. Nothing that fits: code 3, and the file stays.
        lines = run_ok([*base, "--max-bytes", taken["bytes"], "--json"])
        check(lines_of(lines, "compress")[0]["bytes"] <= taken["bytes"], lines[-1])
        before = out.read_bytes()
        code, _, err = run([*base, "--max-bytes", 10])
        check(code == 3 and "none stays within" in err and out.read_bytes() == before, (code, err))
        refused([*base], "--max-error-increase X%, --max-bytes N")
        refused(["compress", "search", folder / "run", "--max-bytes", 10], "--out FILE.safetensors is missing")
        refused(["compress", "search", "--out", out, "--max-bytes", 10], "no models given")
        refused([*base[:-1], folder / "m.onnx", "--max-bytes", 10], "ends in .safetensors")
        refused([*base, "--max-bytes", 0], "--max-bytes")
        refused(["compress", "search", out, "--out", folder / "twice.safetensors", "--max-bytes", 10], "is compressed already")


def test_training_with_rounded_weights():
    with Folder() as folder:
        base = ["--model", "fc:hidden=32", "--data", "synthetic:1x12x12,classes=8,samples=6000,noise=4", "--global-batch", "32",
                "--optimizer", "momentum", "--threads", "1"]
        train(folder / "run", *base, "--lr", "0.03", "--steps", "400", "--eval-every", "400")
        before = state_of(folder / "run")
        four, more = ["--bits", "4", "--group-size", "1000"], ["--steps", "200", "--lr", "0.01"]
        tuned, layers = quantized(folder / "run", folder / "tuned.safetensors", "--scheme", "qat", *four, *more)
        check(tuned["method"] == "quantize qat int4" and tuned["original_val_loss"] == run_ok(["evaluate", folder / "run", "--json"])[-1]["loss"], tuned)
        # The same training without rounding, and four bits after it: they cost something, and most of that is gone where the training knew of them.
        train(folder / "plain", *base, *more, "--init-from", folder / "run", "--schedule-lr", "linear", "--eval-every", "200")
        plain, _ = quantized(folder / "plain", folder / "plain.safetensors", "--scheme", "weight-only", *four)
        costs = plain["val_loss"] - plain["original_val_loss"]
        check(costs > 0.001 and tuned["val_loss"] < plain["val_loss"] - costs / 2, (tuned, plain))
        check(abs(tuned["bytes"] - plain["bytes"]) < 300 and layers["hidden1"]["done"] == "weights int4, computes in floats", (layers, tuned, plain))
        check(state_of(folder / "run") == before and (folder / "run-qat-4").is_dir(), "the run is as it was, and its training has a folder of its own")
        config = (folder / "run-qat-4" / "config.toml").read_text()
        check('quantize-aware = "4:1000"' in config or 'quantize_aware = "4:1000"' in config, config)
        # Weights are rounded in training alone: the exact ones are kept, and evaluate says what training said.
        done = [line for line in map(json.loads, (folder / "run-qat-4" / "metrics.jsonl").read_text().splitlines()) if line["event"] == "done"][-1]
        check(run_ok(["evaluate", folder / "run-qat-4", "--json"])[-1]["loss"] == done["val_loss"], done)
        run_ok(["checkpoint", "export", folder / "run-qat-4", "--out", folder / "exact.safetensors"])
        raw = tensors(folder / "exact.safetensors")["hidden1.weight"][2]
        check(len({raw[at:at + 4] for at in range(0, len(raw), 4)}) > len(raw) // 8, "exact weights")
        # The same command again finds it done; other bits are another training; int8 on two workers.
        again, _ = quantized(folder / "run", folder / "again.safetensors", "--scheme", "qat", *four, *more)
        check(again["val_loss"] == tuned["val_loss"], (again, tuned))
        eight, layers = quantized(folder / "run", folder / "eight.safetensors", "--scheme", "qat", "--steps", "20", "--workers", "2", "--layout", "zero=2")
        check(eight["method"] == "quantize qat int8" and layers["hidden1"]["done"] == "int8 static, does relu1", (eight, layers))
        check(run_ok(["evaluate", folder / "eight.safetensors", "--json"])[-1]["loss"] == eight["val_loss"], eight)
        # What was pruned stays zero.
        run_ok(["compress", "prune", folder / "run", "--sparsity", "0.5", "--steps", "20", "--out", folder / "sparse.safetensors", "--run", folder / "sparse"])
        quantized(folder / "sparse", folder / "both.safetensors", "--scheme", "qat", "--steps", "20")
        codes = tensors(folder / "both.safetensors")["hidden1.weight"][2]
        check(codes.count(0) >= len(codes) // 2, codes.count(0))
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--steps", "5"], "--steps would do nothing here", "--scheme qat")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--scheme", "qat", "--bits", "4", "--calibration", "mse"],
                "--scheme qat with --bits 4")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--scheme", "qat", "--bits", "2"], "--bits 2")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--scheme", "qat", "--layout", "tp=2", "--workers", "2",
                 "--run", folder / "none"], "--quantize-aware 8 with tp is not supported")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--scheme", "qat", *four, "--steps", "300",
                 "--lr", "0.01"], "holds another run", "--steps 200 where this one has 300")
        refused(["train", *base, "--quantize-aware", "8", "--precision", "bf16", "--run", folder / "half"], "--precision bf16 is not supported")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--scheme", "qat", *four, "--steps", "200",
                 "--lr", "0.5"], "holds another run", "--lr 0.01 where this one has 0.5")
        refused(["compress", "quantize", folder / "sparse.safetensors", "--out", folder / "x.safetensors", "--scheme", "qat"], "lacks its zeros",
                "prune weight:0.5")
        refused(["compress", "quantize", folder / "run", "--out", folder / "x.safetensors", "--report", folder / "run" / "config.toml"], "ends in .html")
        refused(["compress", "quantize", folder / "exact.safetensors", "--out", folder / "exact.safetensors"], "is the file that is read")
        check(not (folder / "x.safetensors").exists() and not (folder / "half").exists(), sorted(folder.iterdir()))
        check(eight["tuned_val_loss"] == run_ok(["evaluate", folder / "run-qat-8", "--json"])[-1]["loss"] and "tuned_val_loss" not in plain, eight)


def test_two_at_once_and_a_training_without_checkpoint():
    with Folder() as folder:
        train(folder / "run", *CNN)
        command = ["compress", "quantize", folder / "run", "--scheme", "qat", "--steps", "1000000", "--run", folder / "tuned",
                   "--out", folder / "x.safetensors"]
        first = start(command)
        wait_for(lambda: (folder / "tuned" / "metrics.jsonl").exists() and steps_in(folder / "tuned") > 3, "the training")
        inode = (folder / "tuned").stat().st_ino
        refused(command, "in use by process")
        check((folder / "tuned").stat().st_ino == inode and (folder / "tuned" / "config.toml").exists(), "a second command takes nothing away")
        first.send_signal(signal.SIGINT)  # To the command alone: it is for the training.
        _, err = first.communicate(timeout=60)
        check(first.returncode == 130 and "the same command goes on" in err and (folder / "tuned" / "checkpoints/latest").exists(), (first.returncode, err))
        check(not (folder / "x.safetensors").exists(), "nothing is written")
        # Without a checkpoint it begins anew, but not over what somebody put there.
        shutil.rmtree(folder / "tuned" / "checkpoints")
        (folder / "tuned" / "notes.txt").write_text("mine")
        command[command.index("1000000")] = "5"
        refused(command, "--steps 1000000 where this one has 5")
        command[command.index("5")] = "1000000"
        refused(command, "notes.txt")
        check((folder / "tuned" / "notes.txt").read_text() == "mine", "the user's file")


def test_compress_refuses():
    with Folder() as folder:
        train(folder / "run", *CNN)
        out = folder / "m.safetensors"
        base = ["compress", "quantize", folder / "run", "--out", out]
        refused(["compress"], "quantize")
        refused(["compress", "quantise", folder / "run", "--out", out], "did you mean 'quantize'")
        refused(["compress", "quantize", "--out", out], "no model given")
        refused(["compress", "quantize", folder / "run"], "--out FILE.safetensors is missing")
        refused(["compress", "quantize", folder / "none", "--out", out], "does not exist")
        refused([*base[:-1], folder / "m.onnx"], "ends in .safetensors")
        refused([*base[:-1], folder / "none" / "m.safetensors"], "none")
        refused([*base, "--bits", "3"], "--bits 3")
        refused([*base, "--bits", "4"], "no kernel", "--scheme weight-only")
        refused([*base, "--scheme", "statik"], "did you mean 'static'")
        refused([*base, "--calibration", "entropy"], "min-max percentile mse")
        refused([*base, "--calibration", "mse", "--scheme", "dynamic"], "would do nothing")
        refused([*base, "--group-size", "8"], "would do nothing")
        refused([*base, "--calibration-samples", "0"], "--calibration-samples")
        refused([*base, "--max-error-increase", "-1%"], "--max-error-increase")
        refused([*base, "--data", "synthetic:1x13x13,classes=4"], "[1, 13, 13]")
        refused([*base, "--data", "synthetic:1x12x12,classes=5"], "5 classes")
        refused([*base, "--lr", "1"], "--lr would do nothing here", "--scheme qat")
        check(not out.exists() and not list(folder.glob("*.tmp*")), sorted(folder.iterdir()))
        quantized(folder / "run", out)
        refused(["compress", "quantize", out, "--out", folder / "twice.safetensors"], "is compressed already", "quantize static")
        refused(["train", *CNN[:-4], "--steps", "1", "--init-from", out, "--run", folder / "more"], "cohort compress", "codes")
        # A file that is cut, and one that is of another model, say so.
        whole = out.read_bytes()
        for length in (5, 200, len(whole) // 2, len(whole) - 1):
            (folder / "cut.safetensors").write_bytes(whole[:length])
            refused(["evaluate", folder / "cut.safetensors"], "cut.safetensors")
        (folder / "damaged.safetensors").write_bytes(whole.replace(b"conv1=8", b"conv1=9"))
        refused(["evaluate", folder / "damaged.safetensors"], "the file is damaged")
        whole = whole.replace(b"text_xxh3", b"text_sum_")  # Another program's file, without the checksum of the texts.
        (folder / "other.safetensors").write_bytes(whole.replace(b"conv1=8", b"conv1=9"))
        refused(["evaluate", folder / "other.safetensors"], "conv1.weight")
        (folder / "newer.safetensors").write_bytes(whole.replace(b'{\\"version\\":1', b'{\\"version\\":7'))
        refused(["evaluate", folder / "newer.safetensors"], "version")


if __name__ == "__main__":
    main(globals())

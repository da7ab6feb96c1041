"""`cohort compress prune`: a run is pruned and trained further, goes on after a kill, stays as it was, and leaves one file that every command takes."""
import os
import signal

from support import Folder, check, finish, kill_session, main, run_ok, start, steps_in, tensors, wait_for
from test_compress import CNN, TEXT, header_of, state_of
from test_use_model import lines_of, refused, train

RESNET = ["--model", "resnet8:width=8", "--data", "synthetic:3x12x12,classes=4,samples=600,noise=2", "--global-batch", "32", "--lr", "0.05",
          "--steps", "20", "--eval-every", "20"]


def pruned(source, out, *options, **more):
    lines = run_ok(["compress", "prune", source, "--out", out, *options, "--json"], **more)
    (last,) = lines_of(lines, "compress")
    check(lines[-1] == last and last["out"] == str(out) and last["bytes"] == out.stat().st_size, last)
    return last, {line["layer"]: line for line in lines_of(lines, "compress_layer")}


def test_weights_go_and_the_file_is_taken_everywhere():
    with Folder() as folder:
        done = lines_of(train(folder / "run", *CNN), "done")[0]
        before = state_of(folder / "run")
        for granularity, options, share in (("weight-0.8", [], 0.8), ("2-4", ["--granularity", "2:4", "--workers", "2", "--layout", "zero=2"], 0.5)):
            out = folder / f"{granularity}.safetensors"
            last, layers = pruned(folder / "run", out, *options)
            check(last["original_val_error"] == done["val_error"] and last["step"] == 60, (last, done))
            check(last["val_error"] <= last["original_val_error"] + 0.05, last)
            # Without zeros, a bit a number beside them; what is left is as large as it was.
            check(last["bytes"] < (1.2 - share) * last["original_bytes"], last)
            for name in ("conv2", "hidden", "output"):
                if granularity == "2-4":
                    check(abs(layers[name]["sparsity"] - share) < 0.002, (granularity, layers[name]))
                check(layers[name]["bytes"] < layers[name]["original_bytes"] or layers[name]["sparsity"] < 0.1, layers[name])
            # All together have what was asked for, and the small last layer keeps most of what it has.
            pruned_numbers = {"conv2": 3200, "hidden": 4608, "output": 128}
            whole = sum(layers[name]["sparsity"] * count for name, count in pruned_numbers.items()) / sum(pruned_numbers.values())
            check(abs(whole - share) < 0.002 and (layers["output"]["sparsity"] < 0.2) == (share == 0.8), (whole, layers))
            check(layers["conv1"]["sparsity"] == 0 and layers["conv1"]["done"] == "dense" and "sparsity" not in layers["relu1"], layers)
            found = run_ok(["evaluate", out, "--json"])[-1]
            check(found["error"] == last["val_error"] and found["loss"] == last["val_loss"], (found, last))
            run_line = run_ok(["evaluate", folder / f"run-{granularity}", "--json"])[-1]
            check(run_line["loss"] == last["val_loss"], "the run beside it is the same model")
            quantized = lines_of(run_ok(["compress", "quantize", out, "--out", folder / "q.safetensors", "--json"]), "compress")[0]
            check(quantized["original_val_error"] == last["val_error"], (quantized, last))
            held = tensors(folder / "q.safetensors")["hidden.weight"]
            check(held[0] == "I8" and held[2].count(0) >= layers["hidden"]["sparsity"] * len(held[2]), "a pruned weight stays zero as a code")
        # Done already: the file is written anew, and nothing is trained.
        when = state_of(folder / "run-weight-0.8")
        again, _ = pruned(folder / "run", folder / "again.safetensors")
        check(state_of(folder / "run-weight-0.8") == when, "nothing was trained")
        check(tensors(folder / "again.safetensors") == tensors(folder / "weight-0.8.safetensors"), "the same file")
        check(state_of(folder / "run") == before, "the run is as it was")


def test_channels_go_and_a_plain_smaller_model_is_left():
    with Folder() as folder:
        for name, arguments, smaller in (("cnn", CNN, "cnn:conv1=4,conv2=8,hidden=16"), ("resnet", RESNET, "resnet8:width=4")):
            train(folder / name, *arguments)
            out = folder / f"{name}.safetensors"
            last, layers = pruned(folder / name, out, "--granularity", "channel", "--sparsity", "0.5", "--steps", "60")
            check(header_of(out)["model"] == smaller, header_of(out)["model"])
            check(last["val_error"] <= last["original_val_error"] + 0.1, last)
            check(last["bytes"] < 0.55 * last["original_bytes"], last)
            check(all(layer["sparsity"] == 0.5 for key, layer in layers.items() if key != "output" and layer["kind"] in ("conv2d", "linear")), layers)
            check(layers["output"]["done"] == "reads fewer channels", layers)
            check(run_ok(["evaluate", out, "--json"])[-1]["loss"] == last["val_loss"], last)
            check(sorted(path.name for path in folder.glob("*.initial*")) == [], "what it began with is gone")
        # It is a model like any other: quantised, trained further, pruned further.
        out = folder / "cnn.safetensors"
        run_ok(["compress", "quantize", out, "--out", folder / "q.safetensors", "--json"])
        run_ok(["train", "--model", "cnn:conv1=4,conv2=8,hidden=16", *CNN[2:-4], "--steps", "2", "--init-from", out, "--run", folder / "more", "--json"])
        last, layers = pruned(out, folder / "both.safetensors", "--sparsity", "0.8", "--steps", "20")
        check(header_of(folder / "both.safetensors")["model"] == "cnn:conv1=4,conv2=8,hidden=16", last)
        check(abs(800 * layers["conv2"]["sparsity"] + 1152 * layers["hidden"]["sparsity"] + 64 * layers["output"]["sparsity"] - 0.8 * 2016) < 2, layers)


def test_a_kill_loses_nothing():
    with Folder() as folder:
        train(folder / "run", *CNN)
        command = ["compress", "prune", folder / "run", "--out", folder / "a.safetensors", "--steps", "800"]
        for granularity in ("weight", "channel"):
            whole, cut = folder / f"whole-{granularity}", folder / f'cut "{granularity}" \\ x'
            options = ["--granularity", granularity, "--sparsity", "0.5"]
            pruned(folder / "run", folder / "whole.safetensors", *options, "--steps", "800", "--run", whole)
            victim = start([*command, *options, "--run", cut])
            wait_for(lambda: (cut / "checkpoints/latest").exists() and steps_in(cut) >= 90, "some steps", timeout=60)
            os.kill(victim.pid, signal.SIGKILL)  # The training goes with it.
            victim.communicate()
            wait_for(lambda: not [line for line in os.popen("ps -eo args").read().splitlines() if str(cut) in line and "ps -eo" not in line],
                     "the training ends")
            check(steps_in(cut) < 800 and not (folder / "a.safetensors").exists(), steps_in(cut))
            # A pointer that is lost, or names nothing (a symbolic link, as it was before), makes no checkpoint less.
            latest = cut / "checkpoints/latest"
            latest.unlink()
            if granularity == "channel":
                latest.symlink_to("step-000000009")
            pruned(folder / "run", folder / "a.safetensors", *options, "--steps", "800", "--run", cut)
            check(tensors(folder / "a.safetensors") == tensors(folder / "whole.safetensors"), f"{granularity}: not what it would have been")
            check('"event":"resume"' in (cut / "metrics.jsonl").read_text() and latest.is_file(), "it went on")
            (folder / "a.safetensors").unlink()


def test_transformers():
    with Folder() as folder:
        train(folder / "run", *TEXT)
        last, layers = pruned(folder / "run", folder / "m.safetensors", "--sparsity", "0.5", "--workers", "2", "--layout", "pp=2,microbatches=2")
        check(0.4 < layers["block1"]["sparsity"] < 0.8 and layers["embedding"]["sparsity"] == 0, layers)
        check(run_ok(["evaluate", folder / "m.safetensors", "--json"])[-1]["loss"] == last["val_loss"], last)
        refused(["compress", "prune", folder / "run", "--granularity", "channel", "--out", folder / "c.safetensors"], "model transformer",
                "cnn, fc, resnet8, vgg11")


def test_what_is_refused():
    with Folder() as folder:
        train(folder / "run", *CNN[:-4], "--steps", "4")
        out = folder / "m.safetensors"
        base = ["compress", "prune", folder / "run", "--out", out]
        before = sorted(folder.rglob("*"))
        for sparsity in ("0", "1", "1.5", "-0.5", "nan", "many", "90%"):
            refused([*base, "--sparsity", sparsity], "--sparsity")
        refused([*base, "--granularity", "chanel"], "did you mean 'channel'")
        refused([*base, "--granularity", "2:4", "--sparsity", "0.6"], "two of every four")
        refused(["compress", "prune", "--out", out], "no model given")
        # Files beside what a verb makes stay, whatever they are called.
        for name in ("o.initial.safetensors", "m.safetensors.attempt.safetensors"):
            run_ok(["checkpoint", "export", folder / "run", "--out", folder / name])
        refused(["compress", "prune", folder / "o.initial.safetensors", "--granularity", "channel", "--run", folder / "o", "--out", out],
                "another file has that name")
        refused(["compress", "search", folder / "none", "--max-bytes", "100000", "--out", out], "does not exist")
        check(header_of(folder / "o.initial.safetensors") == header_of(folder / "m.safetensors.attempt.safetensors"), "both are there")
        for name in ("o.initial.safetensors", "m.safetensors.attempt.safetensors"):
            (folder / name).unlink()
        refused(["compress", "prune", folder / "run"], "--out FILE.safetensors is missing")
        refused(["compress", "prune", folder / "none", "--out", out], "does not exist")
        refused([*base[:-1], folder / "m.onnx"], "ends in .safetensors")
        refused([*base, "--scheme", "static"], "--scheme")
        refused([*base, "--layout", "tp=2", "--workers", "2"], "--prune weight:0.8 with tp is not supported")
        refused([*base, "--data", "synthetic:1x13x13,classes=4"], "[1, 13, 13]")
        check(sorted(folder.rglob("*")) == before, "nothing is written")
        run_ok(["compress", "quantize", folder / "run", "--out", folder / "q.safetensors", "--json"])
        refused(["compress", "prune", folder / "q.safetensors", "--out", out], "is compressed already", "quantize static")
        pruned(folder / "run", out, "--steps", "2", "--run", folder / "new")
        refused([*base, "--steps", "3", "--run", folder / "new"], "holds another run", "--steps 2 where this one has 3")
        refused([*base, "--steps", "2", "--run", folder / "run"], "holds another run")
        refused(["compress", "prune", out, "--out", folder / "twice.safetensors"], "is compressed already")


if __name__ == "__main__":
    main(globals())

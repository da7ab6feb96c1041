"""--init-from, --freeze and --augment: any layout begins with what any other has trained, a new head where classes differ, frozen tensors keep every bit, pictures change alike
on every layout; every bad input is one line."""
import json
import struct

from support import Folder, check, main, run, run_ok
from test_use_model import refused

PICTURES = ["--data", "synthetic:1x8x8,classes=4,samples=330,noise=3"]
MODEL, BATCH = ["--model", "cnn:width=0.125"], ["--global-batch", "32", "--threads", "1"]
CNN = [*MODEL, *PICTURES, *BATCH]


def trained(folder, *arguments):
    return run_ok(["train", *map(str, arguments), "--run", folder, "--json"])


def tensors(folder, where, name="x"):
    """Of the newest checkpoint, as bytes by name."""
    out = folder / f"{name}.safetensors"
    run_ok(["checkpoint", "export", where, "--out", out])
    data = out.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {key: (value["shape"], data[8 + size + value["data_offsets"][0]:8 + size + value["data_offsets"][1]]) for key, value in header.items() if key != "__metadata__"}


def values(entry):
    return struct.unpack(f"<{len(entry[1]) // 4}f", entry[1])


def distance(a, b):
    return max(abs(x - y) for x, y in zip(values(a), values(b)))


def test_any_layout_begins_with_what_another_has_trained():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 12, "--workers", 2)
        base = tensors(folder, folder / "base", "base")
        exported = folder / "base.safetensors"
        layouts = (["--layout", "single"], ["--workers", "2"], ["--workers", "2", "--layout", "zero=3"], ["--workers", "2", "--layout", "pp=2,microbatches=2"], ["--workers", "2", "--layout", "tp=2"],
                   ["--workers", "2", "--layout", "sync=local:2"], ["--workers", "2", "--layout", "sync=stale:0"], ["--layout", "sync=async", "--virtual", "workers=1,compute=1"])
        first = None
        for number, layout in enumerate(layouts):
            run_folder = folder / f"run{number}"
            source = (folder / "base", folder / "base/checkpoints/latest", exported)[number % 3]
            # A rate of 0 for a step leaves the weights of the file, bit by bit.
            trained(folder / f"still{number}", *CNN, *layout, "--init-from", source, "--lr", 0, "--steps", 2)
            check(tensors(folder, folder / f"still{number}") == base, f"{layout} did not begin with the weights")
            lines = trained(run_folder, *CNN, *layout, "--init-from", source, "--lr", 0.01, "--steps", 4)
            mine = tensors(folder, run_folder)
            check(mine != base, f"{layout} did not train")
            loss = [line for line in lines if line["event"] == "step"][0]["loss"]
            first = first or loss
            if "sync=local:2" not in layout:  # There the first line is of two steps.
                check(abs(loss - first) < 1e-5 * first, (layout, loss, first))
        # A run that goes on takes its own weights.
        again = trained(folder / "run1", *CNN, "--workers", 2, "--init-from", folder / "base", "--lr", 0.01, "--steps", 8, "--resume")
        whole = trained(folder / "whole", *CNN, "--workers", 2, "--init-from", folder / "base", "--lr", 0.01, "--steps", 8)
        check(tensors(folder, folder / "run1") == tensors(folder, folder / "whole"), (again, whole))


def test_a_new_head_and_frozen_layers():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 6)
        base = tensors(folder, folder / "base")
        frozen = [name for name in base if name.startswith("conv")]
        check(frozen and len(frozen) < len(base), base.keys())
        six = [*MODEL, *BATCH, "--data", "synthetic:1x8x8,classes=6,samples=330,noise=3"]
        losses = []
        for number, layout in enumerate((["--layout", "single"], ["--workers", "2"], ["--workers", "2", "--layout", "zero=3"], ["--workers", "2", "--layout", "pp=2,microbatches=2"], ["--workers", "2", "--layout", "tp=2"],
                                         ["--workers", "3", "--layout", "pp=3,microbatches=2"], ["--workers", "2", "--layout", "sync=local:2"], ["--workers", "2", "--layout", "sync=stale:0"],
                                         ["--workers", "2", "--weights", "private"], ["--workers", "2", "--layout", "compress=int8"])):
            code, out, err = run(["train", *six, *layout, "--init-from", folder / "base", "--freeze", "conv*", "--lr", 0.02, "--weight-decay", 0.1, "--steps", 6, "--run", folder / f"run{number}", "--json"])
            check(code == 0, f"{layout}: {err}")
            mine = tensors(folder, folder / f"run{number}")
            check(all(mine[name] == base[name] for name in frozen), f"{layout}: a frozen tensor changed")
            changed = [name for name in mine if name not in frozen and mine[name] != base.get(name)]
            check(len(changed) == len(mine) - len(frozen), f"{layout}: {changed}")
            losses.append([json.loads(line)["loss"] for line in out.splitlines() if '"event":"step"' in line][-1])
            if number == 0:
                check("new for 6 outputs: " in err and ", there [4" in err, err)
                check(f"frozen: {len(frozen)} of {len(base)} tensors" in err, err)
        for number in (1, 2, 3, 4, 5, 8):
            check(abs(losses[number] - losses[0]) < 1e-4 * losses[0], (number, losses))


def test_pictures_change_alike_on_every_layout():
    with Folder() as folder:
        base = [*CNN, "--augment", "crop,flip", "--steps", 6, "--lr", 0.02]
        alone = trained(folder / "alone", *base, "--eval-every", 3)
        plain = trained(folder / "plain", *CNN, "--steps", 6, "--lr", 0.02)
        losses = [[line["loss"] for line in lines if line["event"] == "step"] for lines in (alone, plain)]
        check(losses[0] != losses[1], "nothing changed")
        for layout in (["--workers", "3"], ["--workers", "2", "--layout", "pp=2,microbatches=2"], ["--accumulate", "4"], ["--workers", "2", "--layout", "sync=stale:0"], ["--layout", "sync=stale:0", "--virtual", "workers=3,compute=1"]):
            lines = trained(folder / ("l" + "-".join(layout).replace("/", "")), *base, *layout)
            found = [line["loss"] for line in lines if line["event"] == "step"]
            check(max(abs(a - b) for a, b in zip(found, losses[0])) < 1e-4 * losses[0][0], (layout, found, losses[0]))
        trained(folder / "halves", *base[:-4], "--lr", 0.02, "--steps", 3)
        trained(folder / "halves", *base, "--resume")
        check(tensors(folder, folder / "halves") == tensors(folder, folder / "alone"), "not the same after a resume")


def test_outputs_of_other_classes_are_named():
    with Folder() as folder:
        for name, labels in (("pets", ("cat", "dog")), ("places", ("sea", "land"))):
            (folder / f"{name}.csv").write_text("x,kind\n" + "".join(f"{i % 2}.{i % 7},{labels[i % 2]}\n" for i in range(80)))
        fc = lambda name: ["train", "--model", "fc:hidden=8", "--data", f"csv:{folder / name}.csv,target=kind", "--global-batch", 8, "--steps", 2]
        run_ok([*fc("pets"), "--run", folder / "run"])
        run_ok(["checkpoint", "export", folder / "run", "--out", folder / "model.safetensors"])
        for number, (source, name, said) in enumerate(((folder / "run", "places", True), (folder / "model.safetensors", "places", True), (folder / "run", "pets", False))):
            code, _, err = run([*fc(name), "--init-from", source, "--run", folder / f"next{number}"])
            check(code == 0 and "began with 4 tensors" in err, err)
            check(('its output 0 was trained as "cat" and is ' in err) == said and ("by their place" in err) == said, err)


def test_verify_has_all_three():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 4)
        for layout in ("dp=2", "zero=2", "pp=2,microbatches=2", "tp=2"):
            run_ok(["verify", *CNN, "--layout", layout, "--workers", 2, "--steps", 3, "--init-from", folder / "base", "--freeze", "conv1", "--augment", "crop,flip", "--json"])


def test_losses_by_name_on_every_layout():
    """What is trained on is what is evaluated, by the training, by `evaluate`, and on every layout."""
    with Folder() as folder:
        seen = {}
        for loss in ("auto", "cross-entropy", "mse", "binary"):
            lines = trained(folder / loss, *CNN, "--loss", loss, "--steps", 6)
            seen[loss] = [line["val_loss"] for line in lines if line["event"] == "eval"][-1]
            found = run_ok(["evaluate", folder / loss, "--json"])[-1]
            check(abs(found["loss"] - seen[loss]) < 1e-6 and found["error"] is not None, (loss, found, seen))
            if loss in ("mse", "binary"):
                run_ok(["verify", *CNN, "--loss", loss, "--layouts", "dp=2;zero=2;pp=2,microbatches=2;tp=2", "--steps", 2, "--json"])
        check(len(set(seen.values())) == 3 and seen["auto"] == seen["cross-entropy"], seen)
        refused(["train", *CNN, "--loss", "mse", "--label-smoothing", "0.1", "--steps", 2, "--run", folder / "new"], "--label-smoothing")


def test_half_precision_files_of_other_programs():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 4)
        base = tensors(folder, folder / "base")
        header, body = {}, b""
        for name, (shape, data) in base.items():
            half = struct.pack(f"<{len(data) // 4}e", *struct.unpack(f"<{len(data) // 4}f", data))
            header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [len(body), len(body) + len(half)]}
            body += half
        text = json.dumps(header).encode()
        (folder / "half.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        trained(folder / "still", *CNN, "--init-from", folder / "half.safetensors", "--lr", 0, "--steps", 1)
        mine = tensors(folder, folder / "still")
        check(all(distance(mine[name], base[name]) < 1e-3 for name in base), "halves")
        check(any(mine[name] != base[name] for name in base), "these were rounded")


def test_what_is_bad_is_one_line():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 4)
        rest = [*PICTURES, *BATCH, "--steps", 2, "--run", folder / "new"]
        base = ["train", *MODEL, *rest]
        for workers in ([], ["--workers", 2]):
            refused([*base, *workers, "--init-from", folder / "nothing"], "nothing")
            (folder / "cut.safetensors").write_bytes(b"\0" * 20)
            refused([*base, *workers, "--init-from", folder / "cut.safetensors"], "cut.safetensors")
            refused(["train", "--model", "cnn:width=0.25", *rest, *workers, "--init-from", folder / "base"], "--init-from: ", "conv1.weight is [")
            refused(["train", "--model", "fc:hidden=8", *rest, *workers, "--init-from", folder / "base"], "has no tensor hidden1.weight")
            refused([*base, *workers, "--freeze", "nothing*"], "--freeze: ", "names no tensor", "conv1.weight")
            refused([*base, *workers, "--freeze", "*"], "is left to train")
            refused([*base, *workers, "--augment", "turn"], "--augment")
        check(not (folder / "new").exists(), "a refused run leaves no folder")
        refused(["train", "--model", "fc:hidden=8", "--data", "synthetic:7,classes=2,samples=50", "--augment", "flip", "--global-batch", 10, "--steps", 2, "--run", folder / "new"], "--augment")


if __name__ == "__main__":
    main(globals())

"""train --prune: what is pruned is zero with its momentum, the same on every layout and after every resume, to the sparsity that was asked for."""
import json
import math
import struct

from support import Folder, check, kill_session, main, run_ok, start, steps_in, wait_for
from test_fine_tuning import tensors, trained, values
from test_use_model import refused

PICTURES = ["--data", "synthetic:1x8x8,classes=4,samples=330,noise=3"]
MODEL = ["--model", "cnn:conv1=4,conv2=8,hidden=16"]
CNN = [*MODEL, *PICTURES, "--global-batch", "32", "--threads", "1", "--optimizer", "momentum", "--lr", "0.02"]
PRUNED = ("conv2.weight", "hidden.weight", "output.weight")


def zeros(entry):
    found = values(entry)
    return [i for i, value in enumerate(found) if value == 0]


def shared_sparsity(shapes, sparsity):
    """Zeros of each tensor where it keeps e x the sum of its dimensions, at most all; e by bisection."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    low, high = 0.0, 1e6
    for _ in range(200):
        e = (low + high) / 2
        kept = {name: min(sizes[name], e * sum(shape)) for name, shape in shapes.items()}
        low, high = (e, high) if sum(kept.values()) < (1 - sparsity) * sum(sizes.values()) else (low, e)
    return {name: sizes[name] - kept[name] for name in shapes}


def test_the_sparsity_is_reached_on_every_layout_by_the_same_weights():
    with Folder() as folder:
        for how, part in (("weight:0.9:uniform", 0.9), ("2:4", 0.5), ("weight:0.8", 0.8)):
            masks = {}
            for name, layout in {"one": [], "dp": ["--workers", 2], "private": ["--workers", 2, "--weights", "private"],
                                 "zero1": ["--workers", 2, "--layout", "zero=1"], "zero2": ["--workers", 3, "--layout", "zero=2"],
                                 "zero3": ["--workers", 3, "--layout", "zero=3"], "pp": ["--workers", 2, "--layout", "pp=2,microbatches=2"]}.items():
                run = folder / f"{name}-{part}"
                trained(run, *CNN, *layout, "--prune", how, "--steps", 12)
                mine = tensors(folder, run)
                for tensor, entry in mine.items():
                    count, found = len(values(entry)), zeros(entry)
                    if how.startswith("weight:0.8"):
                        check(tensor in PRUNED or not found, (how, name, tensor))
                        continue
                    check(len(found) == (round(part * count) if tensor in PRUNED else 0), (how, name, tensor, count, len(found)))
                    if how == "2:4" and tensor in PRUNED:
                        four = values(entry)
                        check(all(sum(value == 0 for value in four[i:i + 4]) == 2 for i in range(0, count, 4)), (name, tensor))
                masks[name] = {tensor: zeros(mine[tensor]) for tensor in PRUNED}
                if how == "weight:0.8":
                    wanted = shared_sparsity({"conv2.weight": (8, 4, 5, 5), "hidden.weight": (16, 32), "output.weight": (4, 16)}, 0.8)
                    found = {tensor: len(masks[name][tensor]) for tensor in PRUNED}
                    check(all(abs(found[tensor] - wanted[tensor]) < 1 for tensor in PRUNED) and abs(sum(found.values()) - 0.8 * (800 + 512 + 64)) < 2,
                          (name, found, wanted))
            # Sums over ranks and micro-batches differ in their last bits, so that a weight next to the threshold may be another one.
            for name, mask in masks.items():
                differ = sum(len(set(mask[tensor]) ^ set(masks["one"][tensor])) for tensor in PRUNED)
                check(differ <= 4, (how, name, differ))


def test_a_run_that_goes_on_prunes_what_it_would_have_pruned():
    with Folder() as folder:
        base = [*CNN, "--prune", "weight:0.8", "--checkpoint-every", 3]
        # A cut that is measured may fall elsewhere when it is measured again, and then the files hold other parts.
        for name, layout in {"one": [], "dp": ["--workers", 2], "zero3": ["--workers", 2, "--layout", "zero=3"],
                             "pp": ["--workers", 2, "--layout", "pp=2,microbatches=2,split=even"]}.items():
            trained(folder / f"{name}-whole", *base, *layout, "--steps", 12)
            victim = start(["train", *base, *layout, "--steps", 12, "--run", folder / f"{name}-killed", "--inject", "kill:0:7"])
            victim.communicate()
            check(steps_in(folder / f"{name}-killed") >= 5, name)
            run_ok(["train", "--run", folder / f"{name}-killed", "--resume", "--inject", "pause:0:0", "--json"])
            for part in ("whole", "killed"):
                check((folder / f"{name}-{part}/checkpoints/step-000000012").exists(), (name, part))
            same_files(folder / f"{name}-whole", folder / f"{name}-killed")


def same_files(one, other):
    """Weights and momentum of the last checkpoints, bit by bit; and momentum is zero where weights are."""
    def held(run):
        out = {}
        for file in sorted((run / "checkpoints/step-000000012").glob("*.safetensors")):
            raw = file.read_bytes()
            size = struct.unpack("<Q", raw[:8])[0]
            for key, value in json.loads(raw[8:8 + size]).items():
                if key != "__metadata__":
                    out[file.name, key] = raw[8 + size + value["data_offsets"][0]:8 + size + value["data_offsets"][1]]
        return out
    first, second = held(one), held(other)
    check(first.keys() == second.keys(), (first.keys(), second.keys()))
    check(all(first[key] == second[key] for key in first), [key for key in first if first[key] != second[key]])
    checked = 0
    for (file, key), data in first.items():
        momentum = next((other for (name, tensor), other in first.items() if name == file and tensor.startswith("optimizer/")
                         and tensor.removeprefix("optimizer/").startswith(key.removeprefix("model/").split("@")[0] + "/") and len(other) == len(data)), None)
        if not key.startswith("model/") or momentum is None or not any(name in key for name in PRUNED):
            continue
        weights, velocity = (struct.unpack(f"<{len(x) // 4}f", x) for x in (data, momentum))
        check(all(v == 0 for w, v in zip(weights, velocity) if w == 0), key)
        checked += 1
    check(checked > 0, first.keys())


def test_trained_weights_are_pruned_from_the_first_step_and_zeros_stay():
    with Folder() as folder:
        trained(folder / "base", *CNN, "--steps", 6)
        trained(folder / "first", *CNN, "--init-from", folder / "base", "--prune", "weight:0.9", "--prune-until", "0.5", "--steps", 6)
        trained(folder / "more", *CNN, "--init-from", folder / "first", "--prune", "weight:0.5", "--steps", 3)
        first, more = tensors(folder, folder / "first"), tensors(folder, folder / "more")
        check(all(zeros(first[name]) == zeros(more[name]) and zeros(first[name]) for name in PRUNED), "a pruned weight came back")
        check(any(first[name] != more[name] for name in PRUNED), "nothing was trained")


def test_transformers_and_frozen_layers():
    with Folder() as folder:
        text = ["--model", "transformer:width=16,layers=1,heads=2", "--data", "synthetic:text,samples=64", "--context", "16", "--global-batch", "16",
                "--optimizer", "adamw", "--threads", "1"]
        for number, layout in enumerate(([], ["--workers", 2, "--layout", "zero=2"])):
            trained(folder / f"run{number}", *text, *layout, "--freeze", "output", "--prune", "weight:0.75:uniform", "--steps", 8)
            for name, entry in tensors(folder, folder / f"run{number}").items():
                is_pruned = name.startswith("block1.") and name.endswith("weight") and "norm" not in name
                check(len(zeros(entry)) == (round(0.75 * len(values(entry))) if is_pruned else len(zeros(entry)) if name.endswith("bias") else 0), name)


def test_what_is_refused():
    with Folder() as folder:
        base = ["train", *CNN, "--steps", 4, "--run", folder / "new", "--prune"]
        for how in ("weight", "weight:0", "weight:1", "weight:0.5:even", "weight:2", "weight:x", "2:8", "channel:0.5", "row:0.5"):
            refused([*base, how], "--prune")
        refused([*base[:-1], "--prune-until", "0.5"], "--prune-until 0.5 would do nothing here", "add --prune")
        refused([*base, "weight:0.5", "--prune-until", "0"], "--prune-until")
        refused([*base, "weight:0.5", "--workers", 2, "--layout", "tp=2"], "--prune weight:0.5 with tp is not supported", "zero=1 to 3")
        for sync in ("local:2", "diloco:2", "async", "stale:1", "queue"):
            refused([*base, "weight:0.5", "--workers", 2, "--layout", f"sync={sync}"], "--prune weight:0.5 with sync=")
        refused(["train", "--model", "fc:hidden=7,layers=2", "--data", "synthetic:1x3x3,classes=4,samples=330", "--global-batch", 10, "--steps", 2,
                 "--run", folder / "new", "--prune", "2:4"], "no matrix to prune",
                "9 columns, no multiple of 4")
        check(not (folder / "new").exists(), "a refused run leaves no folder")


if __name__ == "__main__":
    main(globals())

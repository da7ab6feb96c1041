#!/usr/bin/env python3
"""Static int8 of torch.ao.quantization beside `cohort compress quantize`, on the same weights: error on the test pictures, and latency on one thread.

    bench/peers/quantize.py [--steps 1500] [--data DIR] [--keep DIR] [--json]

Trains --model cnn with cohort on Fashion-MNIST (DIR holds the IDX files, plain or .gz), exports it, and quantises it twice: by `cohort compress quantize`, and by torch.ao's FX mode with the
"x86" settings, calibrated on as many training pictures (512). Both keep float answers beside for their latency, the two in turn in one process; errors are those of all 10,000 test pictures.
"""
import argparse
import copy
import gzip
import json
import pathlib
import statistics
import sys
import time
import warnings

import torch
from safetensors import safe_open
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from compressed_rows import Folder, compressed, folder_of, run_ok, train  # noqa: E402

CALIBRATION = 512


def read_idx(folder, name, header_bytes):
    path = pathlib.Path(folder) / name
    raw = path.read_bytes() if path.exists() else gzip.decompress((path.parent / (name + ".gz")).read_bytes())
    return torch.frombuffer(bytearray(raw[header_bytes:]), dtype=torch.uint8)


def model_of(path):
    """The network of --model cnn with this file's weights, and how its pictures are normalised."""
    with safe_open(path, "pt") as file:
        tensors, data = {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["data"])
    layers = []
    for name in ("conv1", "conv2"):
        out, given, size, _ = tensors[name + ".weight"].shape
        layers += [(name, nn.Conv2d(given, out, size, padding=size // 2)), ("relu_" + name, nn.ReLU()), ("pool_" + name, nn.MaxPool2d(2))]
    layers.append(("flatten", nn.Flatten()))
    for name in ("hidden", "output"):
        out, given = tensors[name + ".weight"].shape
        layers.append((name, nn.Linear(given, out)))
        if name == "hidden":
            layers.append(("relu_hidden", nn.ReLU()))
    model = nn.Sequential()
    for name, layer in layers:
        model.add_module(name, layer)
    model.load_state_dict(tensors)
    return model.eval(), data["mean"][0], data["deviation"][0]


def error_of(model, pictures, labels):
    wrong = sum(int((model(pictures[i:i + 250]).argmax(1) != labels[i:i + 250]).sum()) for i in range(0, len(labels), 250))
    return wrong / len(labels)


def latency(models, batch, seconds=2.0):
    """Medians, the models in turn."""
    times = [[] for _ in models]
    for model in models:
        for _ in range(3):
            model(batch)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for model, mine in zip(models, times):
            start = time.perf_counter()
            model(batch)
            mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]


def quantized_by_torch(model, pictures):
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That it will move to another package.
        prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (pictures[:1],))
        for i in range(0, CALIBRATION, 64):
            prepared(pictures[i:i + 64])
        return convert_fx(prepared)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1500")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--keep")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Folder() as temporary, torch.no_grad():
        folder = folder_of(options, temporary)
        run = train("cnn", "fashion-mnist:" + options.data, options.steps, folder / "cnn")
        run_ok(["checkpoint", "export", run, "--out", folder / "cnn.safetensors"])
        ours = compressed("quantize", run, "--out", folder / "cnn-int8.safetensors", "--calibration-samples", CALIBRATION)
        ours_error = run_ok(["evaluate", folder / "cnn-int8.safetensors", "--split", "test", "--json"])[-1]["error"]
        model, mean, deviation = model_of(folder / "cnn.safetensors")
        read = {part: ((read_idx(options.data, part + "-images-idx3-ubyte", 16).view(-1, 1, 28, 28).float() / 255 - mean) / deviation) for part in ("train", "t10k")}
        labels = read_idx(options.data, "t10k-labels-idx1-ubyte", 8).long()
        theirs = quantized_by_torch(model, read["train"])
        torch.set_num_threads(1)
        rows = [{"system": "floats", "error": error_of(model, read["t10k"], labels)}]
        times = {size: latency([model, theirs], read["t10k"][:size]) for size in (1, 64)}
        rows.append({"system": "torch.ao, x86, FX", "error": error_of(theirs, read["t10k"], labels), **{f"times_faster_batch_{size}": a / b for size, (a, b) in times.items()}, **{f"seconds_batch_{size}": b for size, (_, b) in times.items()}})
        rows.append({"system": "cohort", "error": ours_error, **{f"times_faster_batch_{size}": ours[f"original_seconds_batch_{size}"] / ours[f"seconds_batch_{size}"] for size in (1, 64)}, **{f"seconds_batch_{size}": ours[f"seconds_batch_{size}"] for size in (1, 64)}})
    if not options.json:
        print("| system | test error | batch 1 | batch 64 |\n|---|---|---|---|")
    for row in rows:
        if options.json:
            print(json.dumps(row))
            continue
        cells = [f"{1e3 * row[f'seconds_batch_{size}']:.3f} ms, {row[f'times_faster_batch_{size}']:.2f} x" if "times_faster_batch_1" in row else "" for size in (1, 64)]
        print(f"| {row['system']} | {100 * row['error']:.2f} % | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""One trial of a batch-size study as a plain PyTorch loop: what `cohort bench study` puts beside ours.

    python study.py DIR BATCH LR STEPS [--ratio R]

Fashion-MNIST (DIR holds train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or .gz; the last 5,000 pictures validate), three hidden layers of
64 with ReLU, plain SGD, one thread. The validation error is measured at steps 0, 1 and then at ceil(R x the step before) (default 2), and at the end.
Prints one JSON line: seconds of wall clock and of the processor, the error at the end, and the processor's milliseconds for a step with all of it.
"""
import argparse
import gzip
import json
import math
import os
import time

import torch
from torch import nn
import torch.nn.functional as F

NUM_VALIDATION, PIXELS, CLASSES, HIDDEN = 5000, 28 * 28, 10, 64


def read_idx(folder, name, header_bytes):
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz", "rb")
    with opened as file:
        return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)


def load(folder):
    images = read_idx(folder, "train-images-idx3-ubyte", 16).view(-1, PIXELS).float().div_(255)
    labels = read_idx(folder, "train-labels-idx1-ubyte", 8).long()
    return (images[:-NUM_VALIDATION], labels[:-NUM_VALIDATION]), (images[-NUM_VALIDATION:], labels[-NUM_VALIDATION:])


def batches(num_samples, batch):
    """A new order every epoch; batches are whole, and run on from one into the next."""
    left = torch.empty(0, dtype=torch.long)
    while True:
        left = torch.cat([left, torch.randperm(num_samples)])
        whole = len(left) // batch * batch
        yield from left[:whole].split(batch)
        left = left[whole:]


def evaluation_steps(ratio, steps):
    step, chosen = 1, {0, steps}
    while step < steps:
        chosen.add(step)
        step = max(step + 1, math.ceil(ratio * step))
    return chosen


@torch.no_grad()
def error_of(model, images, labels):
    return (model(images).argmax(1) != labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("batch", type=int)
    parser.add_argument("lr", type=float)
    parser.add_argument("steps", type=int)
    parser.add_argument("--ratio", type=float, default=2)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    (images, labels), validation = load(options.folder)
    widths = [PIXELS, HIDDEN, HIDDEN, HIDDEN]
    layers = [layer for before, after in zip(widths, widths[1:]) for layer in (nn.Linear(before, after), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    order, evaluated = batches(len(labels), options.batch), evaluation_steps(options.ratio, options.steps)

    wall, processor = time.perf_counter(), time.process_time()
    error = error_of(model, *validation)
    for step in range(1, options.steps + 1):
        chosen = next(order)
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        if step in evaluated:
            error = error_of(model, *validation)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(json.dumps({"peer": "pytorch-loop", "batch": options.batch, "lr": options.lr, "steps": options.steps, "val_error": round(error, 4),
                      "seconds": wall, "cpu_seconds": processor, "step_ms": 1e3 * processor / options.steps}), flush=True)


if __name__ == "__main__":
    main()

"""Seconds of one training step of PyTorch's own data parallelism over Gloo: what `cohort bench step` puts beside ours.

    torchrun --standalone --nproc-per-node 2 ddp.py WORKLOAD [STEPS] [ddp|fsdp|none] [momentum|adam]

Mode `none` exchanges nothing: the floor. SGD with momentum or Adam, PyTorch's fused kernels, one compute thread a rank. Every step begins at a barrier that is not timed, so
that no rank's lateness is counted twice. The first five steps are not counted. Rank 0 prints one JSON line with the median.
"""
import argparse
import json
import os
import statistics
import time

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workloads import WORKLOADS, loss_of, workload

NUM_WARMUP_STEPS = 5


def parallelise(model, mode):
    if mode == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "fsdp":
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    return model


def make_optimizer(name, parameters, mode):
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, fused=True)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=mode != "fsdp")  # FSDP's tensors know no fused SGD.


def time_steps(model, optimizer, inputs, targets, num_steps):
    seconds = []
    for _ in range(num_steps):
        distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("steps", type=int, nargs="?", default=30)
    parser.add_argument("mode", choices=("ddp", "fsdp", "none"), nargs="?", default="ddp")
    parser.add_argument("optimizer", choices=("momentum", "adam"), nargs="?", default="momentum")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    model, inputs, targets = workload(options.workload)
    model = parallelise(model, options.mode)
    seconds = time_steps(model, make_optimizer(options.optimizer, model.parameters(), options.mode), inputs, targets, NUM_WARMUP_STEPS + options.steps)
    if distributed.get_rank() == 0:
        median = statistics.median(seconds[NUM_WARMUP_STEPS:])
        print(json.dumps({"peer": "pytorch-" + options.mode, "workload": options.workload, "ranks": distributed.get_world_size(),
                          "step_ms": 1e3 * median}), flush=True)
    distributed.barrier()
    # The end of a process group hangs now and then (PyTorch 2.13: its destructor holds the GIL and joins a thread that waits for it).
    os._exit(0)


if __name__ == "__main__":
    main()

"""Seconds of one training step of PyTorch's own data parallelism over Gloo: what `cohort bench step` puts beside ours.

    torchrun --standalone --nproc-per-node 2 ddp.py --workload mlp [--mode ddp|fsdp|none] [--steps 30] [--warmup 5]

Mode `none` exchanges nothing: the floor. Plain SGD with momentum, one compute thread a rank. Every step begins at a barrier that is not timed, so
that no rank's lateness is counted twice. Rank 0 prints one JSON line with the median, in the form of `cohort bench step`.
"""
import argparse
import json
import statistics
import time

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workloads import WORKLOADS, loss_of, workload


def parallelise(model, mode):
    if mode == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "fsdp":
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    return model


def time_steps(model, inputs, targets, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
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
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--mode", choices=("ddp", "fsdp", "none"), default="ddp")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5, help="steps that are run first and not counted")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    model, inputs, targets = workload(options.workload)
    seconds = time_steps(parallelise(model, options.mode), inputs, targets, options.warmup + options.steps)
    if distributed.get_rank() == 0:
        print(json.dumps({"workload": options.workload, "system": "pytorch-" + options.mode, "workers": distributed.get_world_size(),
                          "step_seconds": statistics.median(seconds[options.warmup:])}), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

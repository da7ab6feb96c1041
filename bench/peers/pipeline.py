"""Seconds of one training step of PyTorch's own pipelines (torch.distributed.pipelining over Gloo): what `cohort bench pipeline` puts beside ours.

    torchrun --standalone --nproc-per-node 2 pipeline.py [gpipe|1f1b] [MICROBATCHES] [STEPS]

The `gpt` workload cut into one stage a rank, as many layers in each; SGD with momentum, PyTorch's fused kernel, one compute thread a rank. A step
begins when all ranks are there and ends when the last one has updated its weights. The first three steps are not counted. Rank 0 prints one JSON
line with the median.
"""
import argparse
import json
import os
import statistics
import time

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from workloads import loss_of, workload

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
NUM_WARMUP_STEPS = 3


def own_layers(model, rank, num_ranks):
    layers = list(model)
    return nn.Sequential(*layers[len(layers) * rank // num_ranks:len(layers) * (rank + 1) // num_ranks])


def time_steps(schedule, optimizer, inputs, targets, num_steps):
    is_first, is_last = distributed.get_rank() == 0, distributed.get_rank() == distributed.get_world_size() - 1
    arguments, keywords = ((inputs,) if is_first else ()), ({"target": targets} if is_last else {})
    seconds = []
    for _ in range(num_steps):
        distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        schedule.step(*arguments, **keywords)
        optimizer.step()
        distributed.barrier()
        seconds.append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedule", choices=SCHEDULES, nargs="?", default="1f1b")
    parser.add_argument("microbatches", type=int, nargs="?", default=4)
    parser.add_argument("steps", type=int, nargs="?", default=20)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank, num_ranks = distributed.get_rank(), distributed.get_world_size()
    model, inputs, targets = workload("gpt")
    layers = own_layers(model, rank, num_ranks)
    stage = PipelineStage(layers, rank, num_ranks, torch.device("cpu"))
    schedule = SCHEDULES[options.schedule](stage, options.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3, momentum=0.9, fused=True)
    seconds = time_steps(schedule, optimizer, inputs, targets, NUM_WARMUP_STEPS + options.steps)
    if rank == 0:
        print(json.dumps({"peer": "pytorch-pipelining-" + options.schedule, "workload": "gpt", "ranks": num_ranks,
                          "microbatches": options.microbatches, "step_ms": 1e3 * statistics.median(seconds[NUM_WARMUP_STEPS:])}), flush=True)
    distributed.barrier()
    # The end of a process group hangs now and then (PyTorch 2.13: its destructor holds the GIL and joins a thread that waits for it).
    os._exit(0)


if __name__ == "__main__":
    main()

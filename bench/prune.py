#!/usr/bin/env python3
"""Error, bytes and latency of pruned models beside the runs that they were made from.

    bench/prune.py [--models cnn,resnet8] [--data fashion-mnist] [--steps 1500] [--fine-tune 1500] [--workers 1] [--keep DIR] [--json]

Trains each model once, then `cohort compress prune` of 90 % of the weights, 2:4 and half of the channels, each with a fine-tuning of --fine-tune steps; and what the fine-tuning alone
gives ("further": the same steps and rates without pruning), so that nothing is taken for a gift of the pruning that is one of the training. Each row's latency is the median of forwards on
one thread that alternate with the original's in one process, so the ratios of a row can be relied on where seconds can not. Errors are those of the validation data; --keep DIR keeps runs
and files, and takes runs that are there.
"""
import argparse

from compressed_rows import Folder, Table, add_options, compressed, file_name, folder_of, run_ok, train

WAYS = {"90 % of the weights": ["--sparsity", "0.9"], "2:4": ["--granularity", "2:4"], "half of the channels": ["--granularity", "channel", "--sparsity", "0.5"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--fine-tune", default="1500")
    parser.add_argument("--workers", default="1")
    options = parser.parse_args()
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        table = Table(options.json)
        for model in options.models.split(","):
            run = train(model, options.data, options.steps, folder / file_name(model))
            for way, arguments in WAYS.items():
                place = folder / f"{run.name}-{file_name(way)}"
                table.row(model, way, compressed("prune", run, "--out", f"{place}.safetensors", *arguments, "--steps", options.fine_tune, "--workers", options.workers, "--run", place))
            further = train(model, options.data, options.fine_tune, folder / f"{run.name}-further", "--init-from", run, "--schedule-lr", "linear", "--workers", options.workers)
            table.row(model, "floats, trained further", run_ok(["evaluate", further, "--json"])[-1], error="error")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Error, bytes and latency of compressed models beside the floats that they were made from.

    bench/compress.py [--models cnn,resnet8] [--data fashion-mnist] [--steps 1500] [--ways 'static;dynamic;...'] [--tuning-steps 300] [--keep DIR] [--json]

Trains each model once, then `cohort compress quantize` in every scheme (and with every calibration of static; of qat with a training of --tuning-steps). Each row's latency is the median of forwards on one thread that alternate with the original's in one
process, so the ratios of a row can be relied on where seconds can not. Errors are those of the validation data; --keep DIR keeps runs and files, and takes runs that are there.
"""
import argparse

from compressed_rows import Folder, Table, add_options, compressed, file_name, folder_of, train

WAYS = {"static": ["--scheme", "static"], "static, percentile": ["--calibration", "percentile"], "static, mse": ["--calibration", "mse"],
        "dynamic": ["--scheme", "dynamic"], "weight-only int8": ["--scheme", "weight-only"], "weight-only int4": ["--scheme", "weight-only", "--bits", "4"],
        "weight-only int4, a scale a row": ["--scheme", "weight-only", "--bits", "4", "--group-size", "100000"]}
TRAINED = {"qat int8": ["--scheme", "qat"], "qat int4, a scale a row": ["--scheme", "qat", "--bits", "4", "--group-size", "100000"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--ways", default=";".join([*WAYS, *TRAINED]), help="with semicolons between")
    parser.add_argument("--tuning-steps", default="300", help="of qat")
    options = parser.parse_args()
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        table = Table(options.json)
        for model in options.models.split(","):
            run = train(model, options.data, options.steps, folder / file_name(model))
            for way in options.ways.split(";"):
                how = WAYS.get(way) or [*TRAINED[way], "--steps", options.tuning_steps, "--run", folder / f"{run.name}-{file_name(way)}"]
                table.row(model, way, compressed("quantize", run, "--out", folder / f"{run.name}-{file_name(way)}.safetensors", *how))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How small and how fast a model becomes by all three together: a student of a teacher, half of its channels or most of its weights gone, in int8.

    bench/composed.py [--models cnn] [--student cnn:width=0.5] [--data fashion-mnist] [--steps 1500] [--student-steps 1500] [--fine-tune 750] [--keep DIR] [--json]

Each step takes the file of the one before, and each row has its error beside the teacher's. Latency is measured beside the model that a step began with, the two in turn in one process; a row's ratios are the products
of those of its steps. Errors are those of the validation data; --keep DIR keeps runs and files, and takes the teacher that is there.
"""
import argparse

from compressed_rows import RATIOS, Folder, Table, add_options, compressed, file_name, folder_of, ratios_of, train


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, models="cnn")
    parser.add_argument("--student", default="cnn:width=0.5")
    parser.add_argument("--student-steps", default="1500")
    parser.add_argument("--fine-tune", default="750")
    options = parser.parse_args()
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        table = Table(options.json)
        for model in options.models.split(","):
            teacher = train(model, options.data, options.steps, folder / file_name(model))
            place = folder / f"{teacher.name}-student"
            steps = [("student", ("distill", teacher, "--student", options.student, "--steps", options.student_steps, "--run", place, "--out", f"{place}.safetensors")),
                     ("then half of its channels", ("prune", f"{place}.safetensors", "--granularity", "channel", "--sparsity", "0.5", "--steps", options.fine_tune, "--run", f"{place}-half", "--out", f"{place}-half.safetensors")),
                     ("then int8", ("quantize", f"{place}-half.safetensors", "--out", f"{place}-half-int8.safetensors"))]
            so_far = dict.fromkeys(RATIOS, 1.0)
            first = None
            for way, arguments in steps:
                line = compressed(*arguments)
                first = first or line
                so_far = {key: so_far[key] * ratio for key, ratio in ratios_of(line).items()}
                table.row(model, way, {**line, **{key: value for key, value in first.items() if key.startswith("original_")}}, ratios=so_far)


if __name__ == "__main__":
    main()

"""For the benchmarks of `cohort compress`: the models that they begin with, and the table that they print."""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import Folder, run_ok  # noqa: E402

TRAINING = {"cnn": ["--optimizer", "momentum", "--lr", "0.02", "--global-batch", "64"], "resnet8": ["--optimizer", "momentum", "--lr", "0.05", "--global-batch", "64"],
            "transformer": ["--optimizer", "adamw", "--lr", "0.003", "--global-batch", "16"]}
RATIOS = ("bytes", "seconds_batch_1", "seconds_batch_64")


def add_options(parser, models="cnn,resnet8"):
    parser.add_argument("--models", default=models)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--steps", default="1500")
    parser.add_argument("--keep")
    parser.add_argument("--json", action="store_true")


def folder_of(options, temporary):
    folder = pathlib.Path(options.keep).resolve() if options.keep else temporary
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_name(words):
    return "".join(c if c.isalnum() or c in ".=" else "-" for c in words.replace(" %", ""))


def train(model, data, steps, run_folder, *more):
    if not run_folder.exists():
        run_ok(["train", "--model", model, "--data", data, "--steps", steps, "--eval-every", steps, "--test-samples", "0", *TRAINING.get(model.split(":")[0], TRAINING["cnn"]),
                "--run", run_folder, "--quiet", "--json", *more], timeout=3600)
    return run_folder


def compressed(*arguments):
    return run_ok(["compress", *arguments, "--json"], timeout=7200)[-1]


class Table:
    """Rows as they come: a line of JSON each, or of Markdown; the first row of a model is that of its floats."""

    def __init__(self, as_json):
        self.as_json = as_json
        self.model, self.error = None, None
        if not as_json:
            print("| model | way | error | points | smaller | batch 1 | batch 64 |\n|---|---|---|---|---|---|---|")

    def row(self, model, way, line, error="val_error", ratios=None):
        """`ratios`: original over compressed, by RATIOS; by default those of the line, where it has them."""
        if self.as_json:
            print(json.dumps({"model": model, "way": way, **line, **({"ratios": ratios} if ratios else {})}), flush=True)
            return
        if model != self.model:
            self.model, self.error = model, line["original_val_error"]
            print(f"| {model} | floats | {100 * self.error:.2f} % | | {line['original_bytes'] / 2**20:.2f} MiB | {1e3 * line['original_seconds_batch_1']:.3f} ms | "
                  f"{1e3 * line['original_seconds_batch_64']:.2f} ms |")
        if ratios is None and "bytes" in line:
            ratios = ratios_of(line)
        times = [f"{ratios[key]:.2f} x" if ratios else "" for key in RATIOS]
        print(f"| | {way} | {100 * line[error]:.2f} % | {100 * (line[error] - self.error):+.2f} | {' | '.join(times)} |", flush=True)


def ratios_of(line):
    return {key: line["original_" + key] / line[key] for key in RATIOS}

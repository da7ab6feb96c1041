#!/usr/bin/env python3
"""What each built-in family reaches on its data: error on the test set (pictures) or bits a byte on the validation text, and how long it took.

    bench/accuracies.py [--families fc,cnn,...] [--scale 1] [--json]

The trainings are short, so that all of them fit an hour of two cores; --scale N makes each N times as long. Every line names the command.
"""
import argparse
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

COHORT = os.environ.get("COHORT_BIN", str(pathlib.Path(__file__).parents[1] / "build/release/bin/cohort"))
PICTURES, TEXT = ["--data", "fashion-mnist"], ["--data", "text:/usr/share/common-licenses", "--sample-bytes", "0"]
ADAM = ["--optimizer", "adam", "--schedule-lr", "cosine", "--warmup-steps", "50"]
FAMILIES = {
    "fc": (6, ["--model", "fc", *PICTURES, *ADAM, "--lr", "0.001"]),
    "cnn": (3, ["--model", "cnn:width=0.5", *PICTURES, *ADAM, "--lr", "0.002"]),
    "cnn, changed pictures": (3, ["--model", "cnn:width=0.5", *PICTURES, *ADAM, "--lr", "0.002", "--augment", "crop,flip"]),
    "resnet8": (2, ["--model", "resnet8", *PICTURES, *ADAM, "--lr", "0.002"]),
    "vgg11": (1, ["--model", "vgg11:width=16,hidden=64", *PICTURES, "--image-size", "32", *ADAM, "--lr", "0.001"]),
    "inception": (1, ["--model", "inception:width=8", *PICTURES, *ADAM, "--lr", "0.002"]),
    "resnet50": (1, ["--model", "resnet50:width=8,blocks=1-1-1-1", *PICTURES, "--image-size", "32", *ADAM, "--lr", "0.002"]),
    "lstm": (2, ["--model", "lstm:width=32,hidden=128", *TEXT, *ADAM, "--lr", "0.004"]),
    "transformer": (4, ["--model", "transformer:width=64,layers=2,heads=4", *TEXT, *ADAM, "--lr", "0.004"]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=";".join(FAMILIES), help="with semicolons between")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.families.split(";"):
        epochs, words = FAMILIES[name]
        with tempfile.TemporaryDirectory() as folder:
            command = ["train", *words, "--epochs", f"{options.scale * epochs:g}", "--run", folder + "/run", "--workers", "2"]
            done = subprocess.run([COHORT, *command, "--json", "--quiet", "--checkpoint-every", "end"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        end = next(line for line in map(json.loads, done.stdout.splitlines()) if line["event"] == "done")
        row = {"family": name, "steps": end["step"], "seconds": end["seconds"], "test_error": end.get("test_error"), "val_error": end["val_error"], "bits_a_byte": end["val_loss"] / math.log(2) if "text:" in " ".join(words) else None,
               "command": "cohort " + shlex.join(command[:-4])}
        found = f"test error {100 * row['test_error']:.2f} %" if row["test_error"] is not None else f"{row['bits_a_byte']:.3f} bits a byte"
        print(json.dumps(row) if options.json else f"{name:22} {found:22} {row['steps']:6} steps, {row['seconds']:6.1f} s   {row['command']}", flush=True)


if __name__ == "__main__":
    main()

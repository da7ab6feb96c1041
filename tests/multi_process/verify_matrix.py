"""What `cohort verify` is run over: layouts x options x models. test_model_parallel.py runs a part of it at every change; `scripts/verify-matrix` runs all of it and
writes docs/verify_matrix.md."""
import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "24"]
LABELS = ["--data", "synthetic:1x16x16,labels=6,samples=200", "--global-batch", "24"]
TEXT = ["--data", "synthetic:text,samples=120", "--context", "16", "--global-batch", "24"]

MODELS = {
    "cnn": ["--model", "cnn:conv1=4,conv2=8,hidden=32", *IMAGES, "--optimizer", "momentum", "--lr", "0.02"],
    "resnet8": ["--model", "resnet8", *IMAGES, "--optimizer", "momentum", "--lr", "0.005"],
    "lstm": ["--model", "lstm:width=16,hidden=24", *TEXT, "--optimizer", "adam", "--lr", "0.001"],
    "transformer": ["--model", "transformer:width=32,layers=5,heads=4", *TEXT, "--optimizer", "adamw", "--lr", "0.001"],
    "inception": ["--model", "inception:width=8,norm=ghost,ghost=4", *IMAGES, "--optimizer", "nesterov", "--lr", "0.005"],
    # The loss of labels is a sum over what ranks of tp have, so their output layer is divided and gathered.
    "labels": ["--model", "cnn:conv1=4,conv2=8,hidden=32", *LABELS, "--optimizer", "momentum", "--lr", "0.02"],
}
# Options that are about one model, which they change.
CHANGED_MODELS = {
    ("tied", "transformer"): "transformer:width=32,layers=5,heads=4,tied=1",
    ("tied, both ends recompute", "transformer"): "transformer:width=32,layers=5,heads=4,tied=1",
    ("dropout", "transformer"): "transformer:width=32,layers=5,heads=4,dropout=0.1",
    ("sync batch norm", "inception"): "inception:width=8,norm=batch",
}
# What a model with a norm over samples, and another loss, add to the others.
OPTIONS_OF = {"inception": ("plain", "zero=2", "accumulate", "bf16", "uneven", "sync batch norm"),
              "labels": ("plain", "zero=1", "zero=2", "zero=3", "accumulate", "bf16", "fp16", "clip", "uneven")}

# Each with what its step is made of. {m} is the number of micro-batches.
SCHEDULES = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved:2", "bfs": "bfs:2", "zb-h1": "zb-h1", "zb-v": "zb-v"}
LAYOUTS = {
    "dp=2": "dp=2",
    "dp=3": "dp=3",
    **{f"pp={workers} {name}": f"pp={workers},schedule={schedule},microbatches={{m}}" for workers in (2, 3, 4) for name, schedule in SCHEDULES.items()},
    "tp=2": "tp=2",
    "tp=3": "tp=3",
    "tp=4": "tp=4",
    "tp=2 sequence": "tp=2,sequence=1",
    "dp=2 pp=2": "dp=2,pp=2,microbatches={m}",
    "dp=2 tp=2": "dp=2,tp=2",
    "pp=2 tp=2": "pp=2,tp=2,microbatches={m}",
    "dp=2 pp=2 tp=2": "dp=2,pp=2,tp=2,microbatches={m}",
    "dp=2 pp=2 tp=2 zb-h1": "dp=2,pp=2,tp=2,schedule=zb-h1,microbatches={m},order=tp-pp-dp",
}

# More stages than a model has layers are refused.
NUM_LAYERS = {"lstm": 3}


def num_stages(name):
    workers = int(name.split("pp=")[1][0]) if "pp=" in name else 1
    return workers * (2 if name.endswith(("interleaved", "bfs", "zb-v")) else 1)


# What is added to a layout, what to the command, and the number of micro-batches.
OPTIONS = {
    "plain": ("", [], 4),
    "zero=1": ("zero=1", [], 2),
    "zero=2": ("zero=2", [], 2),
    "zero=3": ("zero=3", [], 2),
    "accumulate": ("", ["--accumulate", "2"], 2),
    "bf16": ("", ["--precision", "bf16"], 2),
    "fp16": ("", ["--precision", "fp16"], 2),
    "clip": ("", ["--clip-norm", "0.1"], 2),
    "zero=3 clip": ("zero=3", ["--clip-norm", "0.1"], 2),
    "recompute": ("recompute=all", [], 2),
    "as a plan says it": ("accumulate=2,precision=bf16,recompute=0/2", [], 2),
    "uneven": ("", [], 5),  # 24 samples, and 24 / 2 a replica, do not divide by 5.
    "smoothing": ("", ["--label-smoothing", "0.1"], 2),
    "decay": ("", ["--schedule-lr", "linear", "--decay-steps", "2", "--lr-end-factor", "0.1"], 2),
    "batch grows": ("", ["--batch-schedule", "1:2"], 2),
    "batch grows zero=2": ("zero=2", ["--batch-schedule", "1:2"], 2),
    "batch grows zero=3": ("zero=3", ["--batch-schedule", "1:2", "--accumulate", "2"], 2),
    # The Transformer whose output layer uses the embedding's table; with zb-v one worker has both.
    "tied": ("", ["--optimizer", "momentum", "--lr", "0.1"], 2),
    "tied, both ends recompute": ("recompute=0/7", ["--optimizer", "momentum", "--lr", "0.1"], 2),
    "dropout": ("", [], 2),
    # A learning rate that moves weights by enough of their last bits to judge by.
    "sync batch norm": ("", ["--sync-batch-norm", "--lr", "0.2"], 2),
    # An average of weights after every step of plain SGD is the step by the average gradient, but for rounding.
    "local:1": ("sync=local:1", ["--optimizer", "sgd", "--lr", "0.2"], 2),
    "diloco:1": ("sync=diloco:1", ["--optimizer", "sgd", "--lr", "0.2", "--outer-lr", "1", "--outer-momentum", "0"], 2),
    # A server that waits for all shares of a step, or for all models, does what the exchange of gradients does.
    "stale:0": ("sync=stale:0", ["--optimizer", "sgd", "--lr", "0.2"], 2),
    "local:1, quorum of all": ("sync=local:1:quorum={n}", ["--optimizer", "sgd", "--lr", "0.2"], 2),
    "augment": ("", ["--augment", "crop,flip"], 2),
    "freeze": ("", ["--freeze", "{frozen}"], 2),
    "teacher": ("", ["--teacher", "{teacher}"], 2),
    "teacher beside": ("", ["--teacher", "{teacher}", "--teacher-answers", "beside"], 2),
    "hint": ("", ["--teacher", "{teacher}", "--hint", "{hint}"], 2),
    "hint zero=3": ("zero=3", ["--teacher", "{teacher}", "--hint", "{hint}"], 2),
    # Two prunings in two steps.
    "prune": ("", ["--prune", "weight:0.5", "--prune-until", "1"], 2),
    "prune zero=1": ("zero=1", ["--prune", "weight:0.5", "--prune-until", "1"], 2),
    "prune zero=2": ("zero=2", ["--prune", "weight:0.5", "--prune-until", "1"], 2),
    "prune zero=3": ("zero=3", ["--prune", "weight:0.5", "--prune-until", "1"], 2),
    "prune evenly": ("zero=3", ["--prune", "weight:0.5:uniform", "--prune-until", "1"], 2),
    "prune 2:4": ("zero=3", ["--prune", "2:4", "--prune-until", "1"], 2),
    "quantize-aware 8": ("", ["--quantize-aware", "8"], 2),
    "quantize-aware 8 zero=1": ("zero=1", ["--quantize-aware", "8"], 2),
    "quantize-aware 8 zero=2": ("zero=2", ["--quantize-aware", "8"], 2),
    "quantize-aware 8 zero=3": ("zero=3", ["--quantize-aware", "8"], 2),
    "quantize-aware 4": ("recompute=all", ["--quantize-aware", "4:8"], 2),
}
# What needs no other model to be seen.
MODELS_OF = {"local:1": ("cnn", "transformer"), "diloco:1": ("cnn", "transformer"), "stale:0": ("cnn", "transformer"), "local:1, quorum of all": ("cnn",), "augment": ("cnn", "resnet8"),
             "freeze": ("cnn", "transformer"), "teacher": ("cnn", "transformer"), "teacher beside": ("cnn", "transformer"), "hint": ("cnn", "transformer"), "hint zero=3": ("cnn",),
             "batch grows": ("cnn", "transformer"), "batch grows zero=2": ("cnn", "transformer"), "batch grows zero=3": ("cnn", "transformer"),
             **{option: ("cnn", "transformer") for option in ("quantize-aware 8", "quantize-aware 8 zero=1", "quantize-aware 8 zero=2", "quantize-aware 8 zero=3")},
             "quantize-aware 4": ("lstm", "transformer"),
             **{option: ("cnn", "transformer") for option in ("prune", "prune zero=1", "prune zero=2", "prune zero=3", "prune evenly", "prune 2:4")}}
# Where weights or batch norm are exchanged between replicas a bound decides, and not the bits.
WITHIN_A_BOUND = ("sync batch norm", "local:1", "diloco:1", "stale:0", "local:1, quorum of all")


def is_refused(model, option, name):
    """Whether the program refuses it, with a sentence. What it should refuse stands in test_verify.py."""
    return ((option in ("smoothing", "sync batch norm") or option.startswith(("prune", "quantize"))) and "tp=" in name      # The loss over divided classes is not smoothed; batch norm is divided by channels; pruning seeks, and rounding has its scales, in whole rows.
            or option.startswith("hint") and ("tp=" in name or "pp=" in name)  # The loss needs what whole layers gave.
            or "tp=3" in name and model != "lstm"                             # Nothing of these models divides by 3.
            or "sequence" in name and model != "transformer"                  # They have no positions.
            or num_stages(name) > NUM_LAYERS.get(model, 100))


def cases(model, option, with_refused=False):
    """Layouts of one training: (name, layout)."""
    added, _, micro_batches = OPTIONS[option]
    for name, layout in LAYOUTS.items():
        if added.startswith(("zero", "sync")) and "dp" not in name:
            continue  # ZeRO divides over the data axis; local steps exchange over it.
        if added.startswith("sync=stale") or "quorum" in added:
            if layout.startswith("dp=") and "," not in layout:  # Their workers have whole models.
                yield name, f"{layout},{added.format(n=layout[3:])}"
            continue
        if with_refused or not is_refused(model, option, name):
            yield name, layout.format(m=micro_batches) + ("," + added if added else "")


@functools.lru_cache(None)
def teacher_of(model):
    """A run of the model itself, from other weights."""
    folder = tempfile.mkdtemp(prefix="cohort-teacher-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = os.environ.get("COHORT_BIN", pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/cohort")
    words = [f"{word},seed=1" if word.startswith("synthetic:") else word for word in MODELS[model]]     # Other weights, the same samples.
    subprocess.run([program, "train", *words, "--seed", "2", "--steps", "4", "--threads", "1", "--quiet", "--run", f"{folder}/run"], check=True, capture_output=True)
    return f"{folder}/run"


def command(model, option):
    """Arguments of `cohort verify` but for the layouts, or None where the option does not go with the model."""
    if option in {key[0] for key in CHANGED_MODELS} and (option, model) not in CHANGED_MODELS:
        return None
    if option not in OPTIONS_OF.get(model, OPTIONS) or model not in MODELS_OF.get(option, MODELS):
        return None
    fill = {"hint": {"cnn": "conv2:conv2,conv1:conv2"}.get(model, "block2:block3"), "frozen": {"cnn": "conv1"}.get(model, "embedding"), "teacher": teacher_of(model) if "{teacher}" in OPTIONS[option][1] else ""}
    arguments = [*MODELS[model], *(word.format(**fill) for word in OPTIONS[option][1]), "--steps", "2"]
    if (option, model) in CHANGED_MODELS:
        arguments[1] = CHANGED_MODELS[option, model]
    return arguments


# Where each fault of `verify --faults` is put in: in the table of faults of docs/verify_matrix.md, and (a part of it) in every test run.
FAULT_OPTIONS = {"cnn": ("plain", "bf16"), "resnet8": ("plain",), "lstm": ("plain",), "transformer": ("plain", "bf16", "tied", "dropout"), "inception": ("plain", "sync batch norm")}


def can_occur(fault, model, option, name, line):
    """Whether a fault changes anything in this cell. `line` is the layout as the program prints it."""
    replicas, pieces = line["dp"], line["dp"] * line["microbatches"]
    return {"gradient-scaled": True,
            "learning-rate": True,
            "bucket-not-exchanged": replicas > 1,
            "share-dropped": pieces > 1,
            "dropout-of-another-step": option == "dropout",
            "partial-sum-missing": "tp=" in name,
            "stale-borrowed-weight": option == "tied" and "pp=" in name and "zb-v" not in name,  # There one worker has both ends of the model.
            "batch-norm-not-shared": option == "sync batch norm" and replicas > 1}[fault]

"""What `cohort verify` is run over: layouts x options x models. test_model_parallel.py runs a part of it at every change; `scripts/verify-matrix` runs all of it and
writes docs/verify_matrix.md."""

IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "24"]
TEXT = ["--data", "synthetic:text,samples=120", "--context", "16", "--global-batch", "24"]

MODELS = {
    "cnn": ["--model", "cnn:conv1=4,conv2=8,hidden=32", *IMAGES, "--optimizer", "momentum", "--lr", "0.02"],
    "resnet8": ["--model", "resnet8", *IMAGES, "--optimizer", "momentum", "--lr", "0.005"],
    "lstm": ["--model", "lstm:width=16,hidden=24", *TEXT, "--optimizer", "adam", "--lr", "0.001"],
    "transformer": ["--model", "transformer:width=32,layers=5,heads=4", *TEXT, "--optimizer", "adamw", "--lr", "0.001"],
}
TIED = ["--model", "transformer:width=32,layers=5,heads=4,tied=1", *TEXT, "--optimizer", "adamw", "--lr", "0.001"]

# Each with what its step is made of. {m} is the number of micro-batches.
SCHEDULES = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved:2", "bfs": "bfs:2", "zb-h1": "zb-h1", "zb-v": "zb-v"}
LAYOUTS = {
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
    # Adam divides by gradients as small as their rounding: plain SGD, so that half precision proves something.
    "bf16": ("", ["--precision", "bf16", "--optimizer", "sgd", "--lr", "0.01"], 2),
    "fp16": ("", ["--precision", "fp16", "--optimizer", "sgd", "--lr", "0.01"], 2),
    "clip": ("", ["--clip-norm", "0.1"], 2),
    "zero=3 clip": ("zero=3", ["--clip-norm", "0.1"], 2),
    "recompute": ("recompute=all", [], 2),
    "uneven": ("", [], 5),  # 24 samples, and 24 / 2 a replica, do not divide by 5.
    "smoothing": ("", ["--label-smoothing", "0.1"], 2),
    "decay": ("", ["--schedule-lr", "linear", "--decay-steps", "2", "--lr-end-factor", "0.1"], 2),
    "tied": ("", [], 2),    # The Transformer whose output layer uses the embedding's table.
}


def cases(model, option, with_refused=False):
    """Layouts of one training: (name, layout)."""
    added, _, micro_batches = OPTIONS[option]
    for name, layout in LAYOUTS.items():
        if added.startswith("zero") and "dp" not in name:
            continue  # ZeRO divides over the data axis.
        if option == "smoothing" and "tp=" in name and not with_refused:
            continue  # The loss over divided classes is not smoothed.
        if num_stages(name) > NUM_LAYERS.get(model, 100) and not with_refused:
            continue
        yield name, layout.format(m=micro_batches) + ("," + added if added else "")


def command(model, option):
    """Arguments of `cohort verify` but for the layouts, or None where the option does not go with the model."""
    if option == "tied" and model != "transformer":
        return None
    return [*(TIED if option == "tied" else MODELS[model]), *OPTIONS[option][1], "--steps", "2"]

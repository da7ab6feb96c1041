"""Models of users (awkward_models.cpp): modules of one piece, losses of their own, and what verify suspects where a layout is another training."""
import csv
import json
import os
import pathlib

from support import Folder, check, main, run, run_ok

PLUGIN = pathlib.Path(os.environ["COHORT_AWKWARD_MODELS"])
IMAGES = ["--plugin", PLUGIN, "--data", "synthetic:1x16x16,classes=4,samples=200", "--global-batch", "26", "--lr", "0.05"]
TEXT = ["--plugin", PLUGIN, "--data", "synthetic:text", "--context", "12", "--global-batch", "10", "--lr", "0.01"]


def bitwise(arguments, layouts):
    lines = [line for line in run_ok(["verify", *arguments, "--layouts", ";".join(layouts), "--steps", "2", "--json"], timeout=300)
             if line["event"] == "verify"]
    check(len(lines) == len(layouts), lines)
    for layout, line in zip(layouts, lines):
        check(line["verdict"] == "same" and line["strict"] == "bitwise" and line["suspects"] == [], f"{arguments} {layout}: {line}")


def last_of(event, arguments):
    return [line for line in run_ok(["train", *arguments, "--json"]) if line["event"] == event][-1]


def refused(verb, arguments, *parts):
    code, out, err = run([verb, *arguments])
    check(code == 2 and all(part in err for part in parts), f"{arguments}: exit code {code}\n{out}{err}")
    return err


def test_a_module_of_one_piece_trains_as_one_process():
    bitwise(["--model", "plain", *IMAGES], ["dp=2", "dp=2,zero=1", "dp=2,zero=3", "dp=3"])
    bitwise(["--model", "plain", *IMAGES, "--precision", "bf16"], ["dp=2", "dp=2,zero=2"])


def test_a_module_of_one_piece_goes_on_from_its_checkpoint():
    with Folder() as folder:
        base = ["--model", "plain", *IMAGES, "--optimizer", "adam"]
        straight = last_of("step", [*base, "--steps", "6", "--run", folder / "straight"])
        run_ok(["train", *base, "--steps", "3", "--run", folder / "run"])
        resumed = last_of("step", ["--plugin", PLUGIN, "--run", folder / "run", "--resume", "--steps", "6"])
        check(resumed["step"] == 6 and resumed["loss"] == straight["loss"], f"{resumed} {straight}")
        check("'model/model.hidden.weight'" in str(run_ok(["checkpoint", "info", folder / "run", "--json"])), "the module's parameters have other names")


def test_what_cannot_be_cut_or_divided_is_refused_with_what_to_return():
    err = refused("train", ["--model", "plain", *IMAGES, "--layout", "pp=2,microbatches=2", "--steps", "2"], "pp=2 cannot cut plain",
                  "torch::nn::Sequential or a cohort::LayerGraph")
    check(err.count("cannot cut") == 1, f"one line, not one a rank:\n{err}")
    err = refused("train", ["--model", "plain", *IMAGES, "--layout", "tp=2", "--steps", "2"], "tp=2 divides no layer of plain",
                  "torch::nn::Sequential or a cohort::LayerGraph")
    check(err.count("divides no layer") == 1, f"one line, not one a rank:\n{err}")


def test_a_loss_of_ones_own_is_the_same_training():
    bitwise(["--model", "own-loss", *IMAGES], ["dp=2", "dp=2,zero=2", "pp=2,microbatches=2", "tp=2", "dp=2,tp=2", "pp=2,tp=2,microbatches=2"])
    bitwise(["--model", "own-loss", *IMAGES, "--precision", "bf16"], ["dp=2", "tp=2"])


def test_a_loss_of_ones_own_is_what_is_trained_and_evaluated():
    for layout in ("single", "dp=2", "tp=2", "pp=2,microbatches=2"):
        with Folder() as folder:
            lines = run_ok(["train", "--model", "own-loss:offset=100", *IMAGES, "--steps", "3", "--layout", layout, "--run", folder / "run", "--json"])
            done = lines[-1]
            check(100 < done["loss"] < 102 and 100 < done["val_loss"] < 102 and 0 <= done["val_error"] <= 1, f"{layout}: {done}")
            check(lines[0]["loss"] == "own", lines[0])
            if layout == "tp=2":
                placements = {layer["layer"]: layer["placement"] for layer in lines[0]["tensor_parallel"]["layers"]}
                check(placements["output"] == "outputs", f"the classes are not divided, so nothing was tested: {placements}")
                check("hidden (column), hidden2 (row), output (outputs)" in lines[0]["tensor_parallel"]["sentence"], lines[0])
    refused("train", ["--model", "own-loss", *IMAGES, "--steps", "2", "--label-smoothing", "0.1"], "--label-smoothing 0.1", "loss of its own")


def test_an_output_that_is_no_scores_has_no_error():
    with Folder() as folder:
        done = last_of("done", ["--model", "regression", *IMAGES, "--steps", "4", "--run", folder / "run"])
        check(done["val_error"] is None and 0 <= done["val_loss"] < 1, done)
        check("nan" not in (folder / "run/metrics.csv").read_text().lower(), "a table with numbers that are none")
        rows = list(csv.DictReader(open(folder / "run/metrics.csv")))
        check(any(row["val_loss"] for row in rows) and not any(row["val_error"] for row in rows), rows)
        check((folder / "run/report.html").exists(), "no report")
        code, out, err = run(["train", "--model", "regression", *IMAGES, "--steps", "4", "--run", folder / "plain"])
        check(code == 0 and "accuracy" not in err and "nan" not in err.lower(), f"{code}\n{out}{err}")
        for layout in ("single", "dp=2", "pp=2,microbatches=2"):
            refused("train", ["--model", "regression", *IMAGES, "--steps", "4", "--layout", layout, "--goal", "val_error<0.1",
                              "--run", folder / "goal"], "--goal val_error<0.1", "use val_loss")
            check(not (folder / "goal").exists(), f"{layout}: a folder is left of a goal that was refused")


def test_a_mistake_in_a_model_is_named_in_one_line():
    for wrong, data, *parts in (
        ("width", IMAGES, "layer 'output' (linear), with weight (4, 31) float32", "failed on the output of layer 'activation', (",
         ", 32) float32; make the sizes", "mat1 and mat2"),
        ("classes", IMAGES, "the loss got the target ", "has scores of 2 classes, 0 to 1; let the last layer", "options.data().num_classes"),
        ("detached", IMAGES, "its output, (", "is detached from its weights", "no detach()"),
        ("loss", IMAGES, "the model's own loss is detached from the output, ("),
        ("in-place", IMAGES, "changes in place what backward still needs"),
        ("conv", TEXT, "layer 'conv' (conv2d), with weight (2, 1, 3, 3) float32", "failed on the model's input, (", ", 12) int64; integers"),
    ):
        for layout in ("single", "dp=2", "pp=2,microbatches=2"):
            with Folder() as folder:
                err = refused("train", ["--model", f"wrong:wrong={wrong}", *data, "--steps", "2", "--layout", layout, "--run", folder / "run"],
                              "model wrong: ", *parts)
                errors = [line for line in err.splitlines() if "model wrong: " in line]
                check(len(errors) == 1 and "Exception raised" not in err and "frame #" not in err, f"{wrong}, {layout}:\n{err}")


def test_a_model_with_nothing_to_train_is_refused_and_leaves_no_folder():
    for wrong, part in (("bare", "model wrong has no parameters, so there is nothing to train"),
                        ("frozen", "model wrong has no parameter that trains: hidden.weight and all others of its 4 are frozen")):
        for layout in ("single", "dp=2", "pp=2,microbatches=2"):
            with Folder() as folder:
                err = refused("train", ["--model", f"wrong:wrong={wrong}", *IMAGES, "--steps", "2", "--layout", layout, "--run", folder / "run"], part)
                check(err.count(part) == 1 and not (folder / "run").exists(), f"{wrong}, {layout}:\n{err}")


def test_a_loss_that_is_no_mean_is_suspected_where_it_is_not_finite():
    with Folder() as folder:
        code, _, err = run(["train", "--model", "wrong:wrong=sum", *IMAGES, "--steps", "30", "--run", folder / "run"])
        check(code == 1 and "is not finite" in err and "model wrong has its own, which must be the mean over the samples" in err, f"{code}\n{err}")


def test_a_model_that_calls_exit_has_not_trained():
    for workers in "1", "2":
        with Folder() as folder:
            code, _, err = run(["train", "--model", "wrong:wrong=exit", *IMAGES, "--steps", "3", "--workers", workers, "--run", folder / "run"])
            check(code == 1 and "something called exit() in the middle of the work" in err and "Traceback" not in err, f"{code}\n{err}")


def test_text_without_scores_is_not_written():
    with Folder() as folder:
        code, out, err = run(["train", "--model", "regression", *TEXT, "--steps", "2", "--run", folder / "run"])
        check(code == 0 and "writes no text" in err, f"{code}\n{out}{err}")
        page = (folder / "run/report.html").read_text()
        check("Perplexity" not in page and "nats a byte" not in page, "the report takes a loss of one's own for a cross-entropy")


def suspects(arguments):
    code, out, err = run(["verify", *arguments, "--steps", "2", "--workers", "2", "--json"], timeout=300)
    last = json.loads(out.splitlines()[-1])
    check(code == 1 and last["verdict"] == "different", f"{arguments}: {code} {last}\n{err}")
    return {(one["module"], one["class"]): one["why"] for one in last["suspects"]}


def test_verify_names_suspects():
    found = suspects(["--model", "plain:norm=1", *IMAGES])
    check(list(found) == [("model.norm", "HandMadeNorm")] and "keeps mean, variance" in found["model.norm", "HandMadeNorm"], found)
    found = suspects(["--model", "plain:norm=1,dropout=0.3", *IMAGES])
    check(set(found) == {("model.norm", "HandMadeNorm"), ("model.dropout", "torch::nn::Dropout")}, found)
    check("cohort::Dropout" in found["model.dropout", "torch::nn::Dropout"], found)
    found = suspects(["--model", "usual-batch-norm", *IMAGES])
    check(list(found) == [("norm", "torch::nn::BatchNorm1d")] and "--sync-batch-norm" in found["norm", "torch::nn::BatchNorm1d"], found)
    found = suspects(["--model", "regression:whole=1", *IMAGES])
    check(list(found) == [("loss", "")], found)
    code, out, _ = run(["verify", "--model", "usual-dropout", *IMAGES, "--steps", "2", "--workers", "2"], timeout=300)
    check(code == 1 and "suspect: dropout (torch::nn::Dropout): draws from LibTorch's generator" in out, out)


def test_verify_finds_what_depends_a_little_on_how_a_batch_is_divided():
    # Also in half precision, where rounding is larger than what they do, and with Adam, which undoes the factor of a sum.
    for how, options in ((1, []), (1, ["--precision", "bf16"]), (2, []), (3, ["--layout", "pp=2,microbatches=4"]), (6, []), (4, ["--optimizer", "adam"])):
        base = ["verify", "--model", f"divided:how={how}", *IMAGES, "--steps", "2", *options, "--json"]
        code, out, err = run([*base, *([] if "--layout" in options else ["--workers", "2"])], timeout=300)
        last = json.loads(out.splitlines()[-1])
        check(code == 1 and last["strict"] == "bitwise" and "depends on how its batch is divided" in last["reason"], f"{how} {options}: {code} {last}\n{err}")
    code, out, _ = run(["verify", "--model", "divided:how=7", *IMAGES, "--steps", "2", "--workers", "2"], timeout=300)
    check(code == 1 and "suspect: forward(): draws from LibTorch's generator (torch::dropout, torch::rand)" in out, out)
    code, out, _ = run(["verify", "--model", "divided:how=8", *IMAGES, "--steps", "2", "--workers", "2"], timeout=300)
    check(code == 1 and "the same batch twice in one process" in out and "keeps state outside its parameters and buffers" in out, out)
    bitwise(["--model", "divided:how=0", *IMAGES], ["dp=2", "pp=2,microbatches=4"])
    # In fp32 in part or as a whole: what double cannot say is measured.
    bitwise(["--model", "divided:how=5", *IMAGES], ["dp=2", "pp=2,microbatches=4"])
    bitwise(["--model", "regression", *IMAGES], ["dp=2", "dp=3"])


def test_a_bias_before_batch_norm_is_no_reason_to_prove_nothing():
    code, out, err = run(["verify", "--model", "usual-batch-norm", *IMAGES, "--steps", "2", "--workers", "2", "--sync-batch-norm", "--json"], timeout=300)
    last = json.loads(out.splitlines()[-1])
    check(code == 0 and last["verdict"] == "same" and "rounding alone moves model/hidden.bias" in last["reason"], f"{code} {last}\n{err}")


if __name__ == "__main__":
    main(globals())

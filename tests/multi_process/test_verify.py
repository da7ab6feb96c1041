"""`cohort verify`: every model family, one process against 2, 3 and 4 ranks; its three verdicts; every fault that is put in is found."""
import json
import os
import pathlib

from support import Folder, check, main, run, run_ok, write_pictures
from verify_matrix import FAULT_OPTIONS, MODELS, can_occur, cases, command

IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "26"]     # 26 divides by 2 only: uneven shares for 3 and 4 ranks.


def verify(arguments, steps=3):
    lines = run_ok(["verify", *arguments, "--steps", steps, "--ranks", "2,3,4", "--json"], timeout=300)
    results = [line for line in lines if line["event"] == "verify"]
    check([line["layout"]["dp"] for line in results] == [2, 3, 4], results)
    for line in results:
        check(line["ok"] and line["verdict"] == "same" and line["repeats_bitwise"] and line["worst_parameter"] and line["reason"], line)
        check(line["strict"] == "bitwise" and line["max_relative_difference"] == line["bound"] == 0, f"not bit by bit what one process computes in the ranks' order: {line}")
        check(0 <= line["to_one_process"] < 0.5, line)


def test_fc():
    verify(["--model", "fc:hidden=32,layers=2", *IMAGES, "--optimizer", "momentum"])


def test_a_last_batch_smaller_than_the_ranks():
    # 180 samples in batches of 59 leave 3 for the fourth step: one of four ranks has none.
    verify(["--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=200", "--global-batch", "59", "--optimizer", "adam", "--lr", "0.003"], steps=5)


def test_over_gloo():
    # Ranks of one host take shared memory by themselves; the way between hosts must be the same training too.
    verify(["--model", "fc:hidden=32,layers=2", *IMAGES, "--optimizer", "momentum", "--backend", "gloo"])


def test_cnn():
    verify(["--model", "cnn:conv1=4,conv2=8,hidden=32", *IMAGES, "--optimizer", "nesterov", "--clip-norm", "0.5"])


def test_resnet8_accumulating():
    verify(["--model", "resnet8:width=4", *IMAGES, "--accumulate", "2"])


def test_resized_pictures():
    with Folder() as folder:
        write_pictures(folder / "pictures", 200, 20)
        verify(["--model", "cnn:conv1=4,conv2=8,hidden=32", "--data", f"mnist:{folder / 'pictures'}", "--image-size", "13", "--global-batch", "24"])
        base = ["train", "--model", "fc:hidden=8", "--data", f"mnist:{folder / 'pictures'}", "--global-batch", 20, "--steps", 3, "--run", folder / "run", "--image-size"]
        sizes = run_ok([*base, 9, "--json"])
        check(next(line for line in sizes if line["event"] == "start")["parameters"] == 81 * 8 + 8 + 8 * 10 + 10, sizes[0])
        code, _, err = run([*base, 10, "--resume"])
        check(code == 2 and "--image-size" in err and len(err.splitlines()) == 1, err)
        for size, text in (("4097", "--image-size"), ("-1", "--image-size"), ("x", "--image-size")):
            code, _, err = run([*base, size])
            check(code == 2 and text in err and len(err.splitlines()) == 1, err)
        run_ok([*base[:-1], "--resume", "--steps", 5])  # It is in config.toml.


def test_resnet50():
    # Its gradients explode and amplify rounding: no bound would prove anything, equal bits do. Running statistics are averaged over ranks.
    verify(["--model", "resnet50:width=4,ghost=4", "--data", "synthetic:3x16x16,classes=5,samples=200", "--global-batch", "32", "--lr", "0.01"])


def test_vgg11():
    verify(["--model", "vgg11:width=4,hidden=16", *IMAGES, "--weight-decay", "0.001"])


def test_lstm():
    verify(["--model", "lstm:width=8,hidden=12", "--data", "synthetic:text", "--context", "12", "--global-batch", "10", "--optimizer", "adam", "--lr", "0.003"])


def test_transformer():
    verify(["--model", "transformer:width=16,layers=2,heads=2,dropout=0.1,tied=1", "--data", "synthetic:text", "--context", "12", "--global-batch", "10", "--optimizer", "adamw", "--lr", "0.003",
            "--warmup-steps", "2"])


def test_half_precision():
    for precision in ("bf16", "fp16"):
        for layout in ("dp=2,zero=1", "dp=2,zero=3", "tp=2", "pp=2,microbatches=2"):
            last = run_ok(["verify", *MODELS["cnn"], "--precision", precision, "--layout", layout, "--steps", "2", "--json"])[-1]
            check(last["verdict"] == "same" and last["strict"] == "bitwise", last)


def test_uneven_shares_and_stages():
    last = run_ok(["verify", *MODELS["cnn"], "--shares", "3:1", "--workers", "2", "--steps", "2", "--json"])[-1]
    check(last["strict"] == "bitwise", last)
    stages = json.dumps({"stages": [{"layers": ["conv1", "relu1", "pool1"], "dp": 2}, {"layers": ["conv2", "relu2", "pool2", "flatten", "hidden", "relu3", "output"], "dp": 1}], "microbatches": 4})
    last = run_ok(["verify", *MODELS["cnn"], "--layout", stages, "--steps", "2", "--json"])[-1]
    check(last["verdict"] == "same" and last["strict"] == "bitwise", last)


def last_line(arguments, expected_code):
    code, out, err = run(["verify", *arguments, "--json"], timeout=300)
    check(code == expected_code, f"{arguments}: exit code {code}, expected {expected_code}\n{out}\n{err}")
    return json.loads(out.splitlines()[-1])


AWKWARD = pathlib.Path(os.environ["COHORT_AWKWARD_MODELS"])


def test_a_model_that_depends_on_how_its_batch_is_divided_is_different():
    base = ["--plugin", AWKWARD, *IMAGES, "--lr", "0.05", "--workers", "2", "--steps", "2"]
    # The ranks do what one process does that takes their shares in turn, and both train otherwise than one that takes the batch whole.
    last = last_line(["--model", "usual-batch-norm", *base], 1)
    check(last["verdict"] == "different" and last["strict"] == "bitwise" and "--sync-batch-norm" in last["suspects"][0]["why"], last)
    # LibTorch's own dropout draws from a generator of its rank.
    last = last_line(["--model", "usual-dropout", *base], 1)
    check(last["verdict"] == "different", last)


def bitwise(arguments, layouts):
    lines = [line for line in run_ok(["verify", *arguments, "--layouts", ";".join(layouts), "--steps", "2", "--json"], timeout=300) if line["event"] == "verify"]
    check(len(lines) == len(layouts), lines)
    for layout, line in zip(layouts, lines):
        check(line["verdict"] == "same" and line["strict"] == "bitwise", f"{arguments} {layout}: {line}")


def test_micro_batches_of_one_group_and_of_several():
    # Groups of 5: micro-batches of 10, 5, 5 and 6 samples. Where a norm is used once its weight's gradient is made late, where twice early; they are added in order all the same.
    bitwise(["--model", "inception:width=8,norm=ghost,ghost=5", *IMAGES, "--optimizer", "nesterov", "--lr", "0.005"],
            ["pp=2,schedule=zb-v,microbatches=4", "pp=3,schedule=zb-h1,microbatches=5", "dp=2,pp=2,schedule=zb-v,microbatches=3"])


def test_a_tied_weight_of_two_stages_of_one_worker():
    # The worker adds their gradients as its schedule brings them.
    layouts = ["pp=2,schedule=zb-v,microbatches=5", "pp=3,schedule=zb-v,microbatches=2,recompute=all", "dp=2,pp=2,schedule=zb-v,microbatches=2", "pp=2,tp=2,schedule=zb-v,microbatches=2"]
    bitwise(command("transformer", "tied"), layouts)
    for precision in ("bf16", "fp16"):
        bitwise([*command("transformer", "tied"), "--precision", precision, "--accumulate", "2"], layouts[:1])
    stages = json.dumps({"stages": [{"layers": ["embedding", "block1"], "worker": 0}, {"layers": ["block2", "block3", "block4", "block5"], "worker": 1}, {"layers": ["norm", "output"], "worker": 0}],
                         "microbatches": 3, "pp": 2})
    bitwise(command("transformer", "tied"), [stages])


def test_batch_norm_of_one_replica_has_no_other_ranks():
    bitwise(command("inception", "sync batch norm"), ["pp=2,schedule=zb-v,microbatches=4", "pp=3,schedule=interleaved:2,microbatches=2"])


def test_a_scaled_gradient_is_found_where_clipping_undoes_a_factor_of_all():
    for arguments, layout in ((command("transformer", "tied"), "pp=2,schedule=zb-v,microbatches=2"), (command("inception", "sync batch norm"), "pp=2,microbatches=2")):
        lines = run_ok(["verify", *arguments, "--clip-norm", "0.1", "--layout", layout, "--faults", "gradient-scaled", "--json"])
        fault = [line for line in lines if line["event"] == "fault"][0]
        check(fault["outcome"] == "found" and fault["factor"] > 1000, fault)


def test_what_can_not_be_bounded_is_not_proven():
    # Batch norm over all ranks has no process in the same order, and half precision explains too much.
    arguments = command("inception", "sync batch norm")
    last = last_line([*arguments, "--workers", "2", "--precision", "bf16"], 5)
    check(last["verdict"] == "not proven" and not last["ok"] and last["strict"] is None and "--precision fp32" in last["reason"], last)
    last = last_line([*arguments, "--workers", "3"], 0)
    check(last["verdict"] == "same" and last["strict"] is None and 0 < last["max_relative_difference"] <= last["bound"] <= 0.01, last)


def test_where_nothing_is_trained_nothing_is_proven():
    for arguments in (["--lr", "0"], ["--precision", "fp16", "--loss-scale", "1e30"]):
        last = last_line([*command("cnn", "plain"), "--workers", "2", *arguments], 5)
        check(last["verdict"] == "not proven" and "nothing was trained" in last["reason"], last)


def test_a_loss_scale_that_skips_other_steps_is_no_matter_of_the_model():
    # Shares overflow where the whole batch does not, or the other way round.
    last = last_line(["--model", "inception:width=4,blocks=1", "--data", "synthetic:3x8x8,classes=4,samples=256", "--global-batch", "16", "--optimizer", "momentum", "--layout", "dp=4",
                      "--precision", "fp16", "--clip-norm", "1", "--steps", "5"], 0)
    check(last["strict"] == "bitwise", last)


def test_a_cut_along_branches_is_kept_for_the_second_run():
    for _ in range(3):
        last = last_line(["--model", "inception:width=4,blocks=2", "--data", "synthetic:1x8x8,classes=4,samples=100", "--global-batch", "16", "--steps", "4",
                          "--layout", "pp=2,microbatches=2,split=branches"], 0)
        check(last["verdict"] == "same" and last["strict"] == "bitwise", last)


PARTS = 6  # Of the layouts of each table of faults, by turns.


def find_faults(model):
    for number, option in enumerate(FAULT_OPTIONS[model]):
        every = list(cases(model, option))
        chosen = dict(entry for place, entry in enumerate(every) if place % PARTS == number % PARTS)
        lines = run_ok(["verify", *command(model, option), "--layouts", ";".join(chosen.values()), "--faults", "all", "--json"], timeout=380)
        faults = [line for line in lines if line["event"] == "fault"]
        check(len(faults) == 8 * len(chosen), f"{len(faults)} faults of {len(chosen)} layouts")
        for place, line in enumerate(faults):
            name = list(chosen)[place // 8]
            expected = "found" if can_occur(line["fault"], model, option, name, line["layout"]) else "does nothing"
            check(line["outcome"] == expected, f"{model} {option} {name}: {line}, expected: {expected}")


def test_every_fault_is_found_in_cnn():
    find_faults("cnn")


def test_every_fault_is_found_in_resnet8():
    find_faults("resnet8")


def test_every_fault_is_found_in_lstm():
    find_faults("lstm")


def test_every_fault_is_found_in_transformer():
    find_faults("transformer")


def test_every_fault_is_found_in_inception():
    find_faults("inception")


def test_a_degree_that_divides_nothing_is_refused():
    for model, layout, sentence in (("cnn", "tp=3", "tp=3 divides no layer"), ("resnet8", "tp=3", "divides no layer"), ("transformer", "tp=3", "4 heads do not divide by 3"),
                                    ("cnn", "tp=2,sequence=1", "sequence=1 divides nothing"), ("lstm", "tp=2,sequence=1", "positions")):
        code, _, err = run(["verify", *command(model, "plain"), "--layout", layout])
        check(code == 2 and sentence in err, f"{model} {layout}: {code} {err}")


def test_what_a_degree_divides_is_listed():
    with Folder() as folder:
        start = run_ok(["train", *MODELS["transformer"], "--layout", "tp=2", "--steps", "1", "--json", "--quiet", "--run", folder / "run"])[0]["tensor_parallel"]
    check(0.9 < start["divided_weights"] < 1, start)
    check({"layer": "norm", "placement": "whole", "reason": ""} in start["layers"] and any(layer["placement"] == "heads" for layer in start["layers"]), start)


def test_what_it_can_not_judge_is_refused():
    for arguments, sentence in ((["--layout", "single"], "--workers N"), (["--layout", "dp=2,compress=int8"], "compress"), (["--shares", "auto", "--workers", "2"], "numbers"), (["--faults", "nonsense"], "--faults"),
                                (["--layouts", "dp=2;;tp=2"], "empty")):
        code, _, err = run(["verify", *command("cnn", "plain"), *arguments])
        check(code == 2 and sentence in err, f"{arguments}: {code} {err}")


def test_a_folder_for_temporary_files_that_is_not_there():
    code, _, err = run(["verify", "--model", "fc:hidden=16", *IMAGES, "--steps", "1"], env={**os.environ, "TMPDIR": "/nowhere/at/all"})
    check(code == 2 and len(err.splitlines()) == 1 and "in /nowhere/at/all (TMPDIR" in err and "set TMPDIR to a folder" in err, f"{code} {err}")


if __name__ == "__main__":
    main(globals())

"""`cohort verify` over what data parallelism can be combined with: {one copy of the weights, private ones, ZeRO 1-3} x {accumulation, clipping, half precision,
batch norm over ranks, tied weights, uneven shares} x models; and what is refused, with a sentence."""
import json

from support import Folder, check, main, run, run_ok

IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "26"]
TEXT = ["--data", "synthetic:text,samples=120", "--context", "16", "--global-batch", "12"]
FC = ["--model", "fc:hidden=32,layers=2", *IMAGES, "--optimizer", "momentum"]
CNN = ["--model", "cnn:conv1=4,conv2=8,hidden=32", *IMAGES, "--optimizer", "adamw", "--lr", "0.002"]
TRANSFORMER = ["--model", "transformer:width=32,layers=2,heads=2", *TEXT, "--optimizer", "adam", "--lr", "0.001"]
LSTM = ["--model", "lstm:hidden=24", *TEXT, "--optimizer", "nesterov"]
ZERO = ["zero=1", "zero=2", "zero=3"]


def verify(arguments, ranks="2,3", steps=3, repeats=True):
    lines = run_ok(["verify", *arguments, "--steps", steps, "--ranks", ranks, "--json"], timeout=300)
    results = [line for line in lines if line["event"] == "verify"]
    check([line["layout"]["dp"] for line in results] == [int(rank) for rank in ranks.split(",")], results)
    for line in results:
        check(line["ok"] and line["repeats_bitwise"] and line["max_relative_difference"] <= line["bound"], f"{arguments}: {line}")
    return results


def test_zero_on_models():
    for layout in ZERO:
        for model in (FC, CNN):
            check(verify([*model, "--layout", layout])[0]["layout"]["zero"] == int(layout[-1]), "the layout that was verified")


def test_zero_on_text_models():
    for layout in ZERO:
        verify([*TRANSFORMER, "--layout", layout], ranks="2")
        verify([*LSTM, "--layout", layout], ranks="3")


def test_zero_accumulating_and_clipping():
    for layout in ZERO:
        verify([*FC, "--layout", layout, "--accumulate", "2", "--clip-norm", "0.3"])


def test_zero_over_gloo():
    for layout in ZERO:
        verify([*FC, "--layout", layout, "--backend", "gloo"], ranks="3")


def test_private_weights():
    verify([*CNN, "--weights", "private", "--clip-norm", "0.5"])


def test_uneven_shares():
    for layout in ("dp", "zero=1", "zero=2", "zero=3"):
        verify([*FC, "--layout", layout, "--shares", "5:1"], ranks="2")
    verify([*CNN, "--shares", "1:4:2", "--accumulate", "2"], ranks="3")


def test_batch_norm_over_ranks():
    for layout in ("dp", "zero=2", "zero=3"):
        verify(["--model", "vgg11:width=4,hidden=16,norm=batch", "--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "26", "--lr", "0.01", "--layout", layout, "--sync-batch-norm"], ranks="2,3", steps=2)
    verify(["--model", "vgg11:width=4,hidden=16,norm=batch", *IMAGES, "--lr", "0.01", "--sync-batch-norm", "--accumulate", "2", "--shares", "3:1"], ranks="2", steps=2)


def test_few_samples_a_statistic_are_warned_of():
    model = ["--model", "vgg11:width=4,hidden=16,norm=ghost,ghost=2", "--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "16", "--steps", "1", "--quiet"]
    with Folder() as folder:
        code, _, err = run(["train", *model, "--workers", "8", "--run", folder / "many"])
        check(code == 0 and "from 2 samples (a batch of 16 over 8 workers)" in err and "1 worker would do" in err and "--global-batch 128 (8 times" in err, err)
        code, _, err = run(["train", *model[:1], model[1].replace("ghost=2", "ghost=16"), *model[2:], "--run", folder / "one"])
        check(code == 0 and "takes its statistics" not in err, err)


def test_half_precision():
    for layout in ("dp", "zero=1", "zero=3"):
        verify([*FC, "--lr", "0.01", "--precision", "bf16", "--layout", layout], ranks="2")
    verify([*FC, "--lr", "0.01", "--precision", "fp16"], ranks="2")


def test_a_checkpoint_of_any_layout_loads_under_any_other():
    with Folder() as folder:
        base = ["train", *CNN, "--quiet", "--json", "--threads", "1"]
        losses = {}
        run_ok([*base, "--run", folder / "whole", "--steps", "6"])
        losses["one process"] = last_loss(folder / "whole")
        first, workers = "zero=3", 3
        run_ok([*base, "--run", folder / "moved", "--steps", "2", "--layout", first, "--workers", workers])
        for steps, layout, workers in ((3, "dp", 2), (4, "zero=1", 3), (5, "zero=2", 2), (6, "single", 1)):
            run_ok([*base, "--run", folder / "moved", "--steps", steps, "--layout", layout, "--workers", workers, "--resume"])
        losses["moved"] = last_loss(folder / "moved")
        check(abs(losses["moved"] - losses["one process"]) < 1e-4 * abs(losses["one process"]), losses)
        run_ok(["checkpoint", "verify", folder / "moved" / "checkpoints" / "latest", "--json"])


def last_loss(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"][-1]


def test_compression_learns_and_goes_on_where_it_was():
    with Folder() as folder:
        for spec in ("bf16", "int8", "topk:0.2", "powersgd:2"):
            base = ["train", "--model", "fc:hidden=32", "--data", "synthetic:1x8x8,classes=4,samples=400", "--global-batch", "32", "--lr", "0.2", "--workers", "2", "--layout", "compress=" + spec, "--quiet",
                    "--json", "--threads", "1"]
            run_ok([*base, "--run", folder / spec, "--steps", "40"])
            steps = [json.loads(line) for line in (folder / spec / "metrics.jsonl").read_text().splitlines() if '"step"' in line]
            losses = [line["loss"] for line in steps if line["event"] == "step"]
            check(losses[-1] < 0.7 * losses[0], f"{spec}: {losses[0]} -> {losses[-1]}")
            # Stopped in the middle and resumed: residuals come back, so the same losses.
            run_ok([*base, "--run", folder / (spec + "-again"), "--steps", "20"])
            run_ok([*base, "--run", folder / (spec + "-again"), "--steps", "40", "--resume"])
            check(abs(last_loss(folder / (spec + "-again")) - losses[-1]) <= 1e-6 * abs(losses[-1]), f"{spec}: {last_loss(folder / (spec + '-again'))} after a resume, {losses[-1]} undisturbed")


def test_compression_under_a_loss_scale_goes_on_where_it_was():
    with Folder() as folder:
        for spec in ("fp16", "int8", "topk:0.1", "powersgd:2"):
            base = ["train", "--model", "fc:hidden=32", "--data", "synthetic:1x8x8,classes=4,samples=400", "--global-batch", "32", "--lr", "0.2", "--workers", "2", "--layout", "compress=" + spec, "--precision", "fp16", "--quiet"]
            run_ok([*base, "--run", folder / spec, "--steps", "40"])
            learnt = losses_of(folder / spec)
            check(learnt[-1] < 0.5 * learnt[0], f"{spec}: losses {learnt[0]} to {learnt[-1]}")
            run_ok([*base, "--run", folder / (spec + "-again"), "--steps", "20"])
            run_ok([*base, "--run", folder / (spec + "-again"), "--steps", "40", "--resume"])
            again = losses_of(folder / (spec + "-again"))
            check(again[-1] == learnt[-1], f"{spec}: {again[-1]} after a resume, {learnt[-1]} undisturbed")


def losses_of(run_folder):
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def test_refused_with_a_sentence():
    for arguments, words in (
            (["verify", *FC, "--layout", "compress=int8"], "another training by design"),
            (["train", *FC, "--workers", "2", "--layout", "zero=1,compress=int8"], "zero=0 with compression"),
            (["train", *FC, "--workers", "2", "--layout", "compress=int7"], "int8"),
            (["train", *FC, "--workers", "2", "--layout", "zero=4"], "0 to 3"),
            (["train", *FC, "--workers", "2", "--shares", "3:1:1"], "3"),
            (["train", *FC, "--workers", "2", "--sync-batch-norm"], "no batch norm layers"),
            (["train", *FC, "--loss-scale", "8"], "fp16"),
            (["train", *FC, "--device", "cuda"], "--device cpu")):
        code, out, err = run(arguments)
        check(code == 2 and words in err and len(err.strip().splitlines()) == 1, f"{arguments}: {code}, {err}")


def test_uneven_workers_get_shares_by_their_speed():
    with Folder() as folder:
        run_ok(["train", "--model", "mlp-small", "--data", "synthetic:1x28x28,classes=10,samples=4000", "--global-batch", "240", "--workers", "2", "--shares", "auto", "--inject", "slow:1:4", "--steps", "130", "--quiet", "--json",
                "--threads", "1", "--run", folder / "run", "--lr", "0.01"], timeout=200)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        shares = [line["shares"] for line in lines if line["event"] == "shares"]
        check(shares and shares[-1][0] > 0.65 and abs(sum(shares[-1]) - 1) < 1e-9, shares)


if __name__ == "__main__":
    main(globals())

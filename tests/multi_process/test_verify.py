"""`cohort verify`: every model family, one process against 2, 3 and 4 ranks."""
import json

from support import Folder, check, main, run, run_ok

IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "26"]     # 26 divides by 2 only: uneven shares for 3 and 4 ranks.


def verify(arguments, bitwise=True, steps=3):
    lines = run_ok(["verify", *arguments, "--steps", steps, "--ranks", "2,3,4", "--json"], timeout=300)
    results = [line for line in lines if line["event"] == "verify"]
    check([line["layout"]["dp"] for line in results] == [2, 3, 4], results)
    for line in results:
        check(line["ok"] and line["repeats_bitwise"] and line["max_relative_difference"] <= line["bound"] < 1e-2 and line["worst_parameter"] and line["reason"], line)
        check(not bitwise or line["accumulated_max_relative_difference"] == 0, f"not bitwise equal to one process that takes the ranks' shares in turn: {line}")
    worst = max(line["max_relative_difference"] for line in results)
    print(f"  {arguments[1]}: worst {worst:.3g}, bound {results[0]['bound']:.3g}")


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


def test_resnet8():
    verify(["--model", "resnet8:width=4", *IMAGES])


def test_resnet8_accumulating():
    # Ranks add (a + b) + (c + d), one process ((a + b) + c) + d: within the bound, not bitwise.
    verify(["--model", "resnet8:width=4", *IMAGES, "--accumulate", "2"], bitwise=False)


def test_resnet50():
    verify(["--model", "resnet50:width=4,ghost=4", "--data", "synthetic:3x16x16,classes=5,samples=200", "--global-batch", "32", "--lr", "0.01", "--clip-norm", "0.01"], bitwise=False)     # Unclipped its gradients explode and amplify rounding; running statistics are averaged.


def test_a_chaotic_training_is_not_called_the_same():
    code, out, err = run(["verify", "--model", "resnet50:width=4,ghost=4", "--data", "synthetic:3x16x16,classes=5,samples=200", "--global-batch", "32", "--lr", "0.01", "--steps", "3", "--workers", 2])
    check(code == 1 and "proves nothing" in out, f"{code} {out} {err}")


def test_vgg11():
    verify(["--model", "vgg11:width=4,hidden=16", *IMAGES, "--weight-decay", "0.001"])


def test_lstm():
    verify(["--model", "lstm:width=8,hidden=12", "--data", "synthetic:text", "--context", "12", "--global-batch", "10", "--optimizer", "adam", "--lr", "0.003"])


def test_transformer():
    verify(["--model", "transformer:width=16,layers=2,heads=2,dropout=0.1,tied=1", "--data", "synthetic:text", "--context", "12", "--global-batch", "10", "--optimizer", "adamw", "--lr", "0.003",
            "--warmup-steps", "2"])


def test_a_difference_is_found():
    """Ranks that compute something else are not 'the same training': a slow rank is, another data order is not."""
    code, out, err = run(["verify", "--model", "fc:hidden=8", *IMAGES, "--steps", 2, "--workers", 2, "--inject", "slow:1:2"])
    check(code == 0 and "the same training" in out, err)


if __name__ == "__main__":
    main(globals())

"""train --batch-schedule: a batch that grows goes on in the data where the smaller one was, and a run that is resumed is the run that was not interrupted."""
from support import Folder, check, main, run_ok
from test_fine_tuning import tensors, trained, values
from test_use_model import refused

FC = ["--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=330,noise=3", "--global-batch", "16", "--threads", "1", "--optimizer", "momentum", "--lr", "0.05"]


def same_weights(folder, a, b):
    mine, other = tensors(folder, folder / a), tensors(folder, folder / b)
    return set(mine) == set(other) and all(values(mine[name]) == values(other[name]) for name in mine)


def test_it_goes_on_with_the_same_bits_on_either_side_of_a_stage_and_later_stages_may_change():
    with Folder() as folder:
        base = [*FC, "--workers", 2, "--batch-schedule", "4:2,8:8"]
        trained(folder / "whole", *base, "--steps", 10)
        # Before, at, between and beyond the stages; what was to come then was something else, or nothing.
        for stop, schedule in {3: [], 4: [], 6: ["--batch-schedule", "4:2"], 9: ["--batch-schedule", "4:2,8:8"]}.items():
            name = f"stopped{stop}"
            trained(folder / name, *FC, "--workers", 2, *schedule, "--steps", stop)
            run_ok(["train", "--run", folder / name, "--resume", "--batch-schedule", "4:2,8:8", "--steps", "10"])
            check(same_weights(folder, "whole", name), f"resumed after step {stop}, the run has other weights")
        trained(folder / "plain", *FC, "--workers", 2, "--steps", 10)
        check(not same_weights(folder, "whole", "plain"), "a batch that grew changed nothing")
        resume = ["train", "--run", folder / "whole", "--resume", "--steps", "12"]
        refused([*resume, "--batch-schedule", "4:2"], "was trained with --batch-schedule 4:2,8:8", "this run has --batch-schedule 4:2;")
        refused([*resume, "--batch-schedule", "5:2,8:8"], "was trained with --batch-schedule 4:2,8:8")
        run_ok([*resume, "--batch-schedule", "4:2,8:8,11:2"])


def test_epochs_count_samples_and_a_checkpoint_says_how_many_there_were():
    with Folder() as folder:
        run_ok(["train", *FC, "--epochs", "2", "--batch-schedule", "10:4", "--run", folder / "run"])
        # 297 of the 330 train: ten of 16, the 137 that are left by 64, 64 and 9; then 64 x 4 + 41.
        state = run_ok(["checkpoint", "info", folder / "run", "--json"])[-1]["state"]
        check(state["step"] == 18 and state["samples_seen"] == 594, (state["step"], state["samples_seen"]))


def test_what_can_not_be_is_refused():
    with Folder() as folder:
        base = ["train", *FC, "--steps", "10", "--run", folder / "new", "--batch-schedule"]
        for schedule, words in {"4": "is not STEP:FACTOR", "4:2,4:3": "comes after", "4:1": "changes nothing", "4:19": "the largest factor is 18", "10:2": "the run has 10", "0:2": "is not from 1"}.items():
            refused([*base, schedule], "--batch-schedule", words)
        for layout in ("sync=async", "sync=stale:1", "sync=queue", "sync=local:2:quorum=2"):
            refused([*base, "4:2", "--workers", "2", "--layout", layout], "--batch-schedule 4:2 with sync=", "use sync=step")
        check(not (folder / "new").exists(), "a refused run left a folder")


if __name__ == "__main__":
    main(globals())

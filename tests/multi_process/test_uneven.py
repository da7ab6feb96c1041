"""Workers that are not equally fast or not on one kind of device: `--device` by rank, measured speeds that become shares and stages, the waste of equal shares beside what was predicted."""
import json
import re

from support import TINY, Folder, check, main, run, run_ok

MODEL = ["--model", "fc:hidden=512,layers=3", "--data", "synthetic:1x28x28,classes=10,samples=400", "--global-batch", "64", "--optimizer", "momentum", "--lr", "0.01"]


def events(folder, name):
    return [line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["event"] == name]


def refused(arguments, *parts):
    code, out, err = run(arguments)
    lines = [line for line in err.strip().splitlines() if line]
    check(code == 2 and len(lines) == 1 and all(part in err for part in parts), (arguments, code, out, err))


def test_a_device_list_of_cpu_is_cpu_and_the_number_may_change_with_a_resume():
    with Folder() as folder:
        listed, plain = folder / "listed", folder / "plain"
        run_ok(["train", *TINY, "--workers", 3, "--device", "cpu,cpu,cpu", "--steps", 6, "--run", listed])
        run_ok(["train", *TINY, "--workers", 3, "--steps", 6, "--run", plain])
        check("devices" not in events(listed, "start")[0], "start")
        check([step["loss"] for step in events(listed, "step")] == [step["loss"] for step in events(plain, "step")], "all on the CPU share one copy of the weights, as ever")
        check("cpu,cpu" not in (listed / "config.toml").read_text(), "config")
        refused(["train", "--run", listed, "--resume", "--workers", 2, "--device", "cpu,cpu,cpu", "--steps", 8], "--device has 3 entries, and there are 2 ranks")
        run_ok(["train", "--run", listed, "--resume", "--workers", 2, "--steps", 8])
        run_ok(["train", "--run", listed, "--resume", "--workers", 2, "--device", "cpu,cpu", "--steps", 10])
        check({change["setting"] for change in events(listed, "changed")} == {"workers", "steps"}, events(listed, "changed"))
        refused(["train", *TINY, "--workers", 2, "--layout", "auto", "--device", "cpu,cpu,cpu", "--steps", 3, "--run", folder / "auto"], "--device has 3 entries")
        run_ok(["verify", *TINY, "--workers", 2, "--device", "cpu,cpu", "--shares", "3:1", "--steps", 3])


def test_devices_that_are_not_there_are_refused_in_one_line():
    with Folder() as folder:
        train = ["train", *TINY, "--run", folder / "run", "--steps", 2]
        refused([*train, "--workers", 3, "--device", "cuda:0,cpu"], "2 entries, and there are 3 ranks", "--workers 2")
        refused([*train, "--workers", 2, "--device", "cpu,gpu"], "'gpu' is not a device", "cuda")
        refused([*train, "--workers", 2, "--device", "cuda:x,cpu"], "'cuda:x' has no whole number")
        refused([*train, "--workers", 2, "--device", "cuda:0,cpu", "--layout", "pp=2"], "--device cuda:0,cpu with pp is not supported")
        refused([*train, "--workers", 2, "--device", "cuda:0,cpu", "--backend", "nccl"], "--backend nccl with --device cuda:0,cpu")
        refused([*train, "--workers", 2, "--device", "cuda:0,cpu", "--weights", "private"], "--device is cuda:0,cpu")
        code, out, err = run([*train, "--workers", 3, "--device", "cuda:7,cpu,cpu"])
        check(code == 2 and "--device cuda:7" in err and "CUDA device" in err, (code, err))
        check(not (folder / "run" / "checkpoints").exists(), "a run that did not begin")


def test_a_plan_measures_slow_workers_and_gives_them_less():
    with Folder() as folder:
        profile = folder / "profile.json"
        asked = ["plan", *MODEL[:6], "--workers", 2, "--precision", "fp32", "--layout", "dp=2,pp=1,tp=1", "--inject", "slow:1:8", "--profile", profile, "--no-what-if", "--json"]
        for _ in range(6):  # What others do meanwhile is measured too, and may be as slow as rank 1 is made.
            profile.unlink(missing_ok=True)
            plan = run_ok(asked, timeout=300)[0]
            slow = re.search(r"slow=1:([0-9.]+)", (plan["sync"] or {}).get("virtual", ""))
            if slow and float(slow[1]) > 3:
                break
        check(slow and float(slow[1]) > 1.5, plan["sync"])
        kept = json.loads(profile.read_text())
        host = kept["measured_on"][-1]["hosts"][0]
        check(len(set(host["devices"])) == 2 and {"rank-of-2", host["devices"][1]} <= {point["device"] for point in kept["points"]}, host)
        uneven = plan["uneven"]
        check(plan["sync"]["sync"] == "step" and plan["sync"]["options"] == "--shares auto" and any("--shares auto" in reason for reason in plan["reasons"]), plan["sync"])
        check(uneven["predicted_equal_waste"] > 0.1 and uneven["predicted_equal_step_seconds"] >= plan["predicted_step_seconds"], uneven)
        if "shares" in plan["layout"]:  # Where others take the cores while it measures, costs may be such that equal ones win.
            first, second = (int(share) for share in plan["layout"]["shares"].split(":"))
            check(first > 1.5 * second and uneven["predicted_waste"] < uneven["predicted_equal_waste"], plan["layout"])
        text = run_ok([*asked[:-1]])
        check("workers are not equally fast" in text and "--inject slow:1:8" in text.strip().splitlines()[-1], text)
        pipeline = run_ok(["plan", "--profile", profile, "--global-batch", 64, "--layout", "dp=1,pp=2,tp=1", "--no-what-if", "--json"])[0]
        loads = {worker["device"]: worker["forward_seconds"] + worker["backward_seconds"] for worker in pipeline["workers"]}
        check(len(loads) == 2, pipeline["workers"])
        refused(["plan", "--profile", profile, "--global-batch", 64, "--inject", "slow:1:4"], "--inject slow:1:4", "--profile has been measured")
        refused(["plan", *MODEL[:6], "--workers", 2, "--inject", "kill:1:4"], "kill would do nothing")
        refused(["plan", *MODEL[:6], "--workers", 2, "--inject", "slow:2:4"], "there is no rank 2")


def test_auto_takes_the_speeds_and_the_run_ends_with_both_wastes():
    with Folder() as folder:
        chosen, equal = folder / "auto", folder / "equal"
        code, out, err = run(["train", *MODEL, "--workers", 2, "--layout", "auto", "--inject", "slow:1:3", "--steps", 30, "--run", chosen], timeout=300)
        check(code == 0 and "auto: layout " in err, (code, out, err))
        layout = next(line for line in (chosen / "config.toml").read_text().splitlines() if line.startswith("layout"))
        if "shares=" in layout:  # One worker may win, or a pipeline.
            waste = events(chosen, "waste")[0]
            plan = json.loads((chosen / "plan.json").read_text())["uneven"]
            check(waste["predicted_equal_waste"] == plan["predicted_equal_waste"] and waste["sentence"] in err, (waste, plan, err))
        run_ok(["train", *MODEL, "--workers", 2, "--inject", "slow:1:3", "--steps", 30, "--run", equal])
        waste = events(equal, "waste")[0]
        check(waste["slowest_rank"] == 1 and waste["shares"] == [0.5, 0.5], waste)
        check(0.1 < waste["measured_waste"] < 0.6 and abs(waste["measured_waste"] - waste["predicted_equal_waste"]) < 0.15, waste)
        check("Waiting for the slowest worker" in (equal / "report.html").read_text(), "the report")
        run_ok(["train", *MODEL, "--workers", 2, "--inject", "slow:1:3", "--shares", "auto", "--steps", 60, "--run", folder / "moved"])
        waste = events(folder / "moved", "waste")[0]
        check(waste["shares"][0] > 0.55 and waste["measured_waste"] < waste["measured_equal_waste"], waste)


if __name__ == "__main__":
    main(globals())

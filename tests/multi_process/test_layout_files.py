"""Layouts from files: parallel branches on two workers, stages with replicas of their own, a user's own schedule; and files that are refused with one line."""
import json
import pathlib

from support import Folder, check, main, run, run_ok

LAYOUTS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "layouts"
IMAGES = ["--data", "synthetic:1x16x16,classes=5,samples=200", "--global-batch", "26", "--optimizer", "momentum", "--lr", "0.02"]
CNN = ["--model", "cnn:conv1=4,conv2=8,hidden=32", *IMAGES]
INCEPTION = ["--model", "inception:width=4,blocks=1", *IMAGES]
CNN_STAGES = [["conv1", "relu1", "pool1"], ["conv2", "relu2", "pool2"], ["flatten", "hidden", "relu3", "output"]]


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def verify(arguments, layout, ranks):
    lines = run_ok(["verify", *arguments, "--steps", "2", "--layout", layout, "--workers", ranks, "--json"], timeout=200)
    result = [line for line in lines if line["event"] == "verify"][0]
    check(result["ok"] and result["repeats_bitwise"] and result["max_relative_difference"] <= result["bound"], f"{layout}: {result}")


def train(folder, arguments, layout, ranks):
    """The events of a short training, by name (the last of each), and its report."""
    run_ok(["train", *arguments, "--steps", "3", "--layout", layout, "--workers", ranks, "--threads", "1", "--quiet", "--json", "--run", folder / "run"])
    events = {}
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        events[json.loads(line)["event"]] = json.loads(line)
    return events, (folder / "run" / "report.html").read_text()


def test_branches_on_two_workers():
    verify(INCEPTION, LAYOUTS / "branches.json", 2)
    with Folder() as folder:
        events, report = train(folder, INCEPTION, LAYOUTS / "branches.json", 2)
        parts = [rank["part"] for rank in events["ranks"]["ranks"]]
        check([part["stages"] for part in parts] == [[0, 2], [1, 3]], parts)
        check("block1_5x5_conv" in parts[0]["layers"] and "block1_3x3_conv" in parts[1]["layers"], parts)
        plan = events["pipeline"]
        check([stage["worker"] for stage in plan["stages"]] == [0, 1, 0, 1] and plan["microbatches"] == 4, plan)
        check(plan["stages"][1]["layers"] == parts[1]["layers"][:6] and all(stage["forward_seconds"] > 0 for stage in plan["stages"]), plan)
        check(0 < plan["predicted_bubble"] < 1 and plan["predicted_step_seconds"] == events["done"]["predicted_step_seconds"], plan)
        check('id="pipeline"' in report and 'id="parts"' in report and "<title>F3.3:" in report, "the sections and the chart of the report")


def test_replicas_of_a_stage():
    with Folder() as folder:
        stages = [{"layers": layers, "dp": degree} for layers, degree in zip(CNN_STAGES, (1, 2, 1))]
        layout = write(folder / "layout.json", {"microbatches": 4, "stages": stages})
        verify(CNN, layout, 4)
        verify([*CNN, "--accumulate", "2", "--clip-norm", "0.1"], layout, 4)
        events, _ = train(folder, CNN, layout, 4)
        check([rank["part"]["data"] for rank in events["ranks"]["ranks"]] == ["1 of 1", "1 of 2", "2 of 2", "1 of 1"], events["ranks"])
        stages[1]["dp"] = 3  # More replicas than micro-batches: one of them has nothing to do.
        verify(CNN, write(folder / "idle.json", {"microbatches": 2, "stages": stages}), 5)


def test_pipelines_side_by_side_from_a_file():
    with Folder() as folder:
        stages = [{"layers": CNN_STAGES[0] + CNN_STAGES[1]}, {"layers": CNN_STAGES[2]}]
        verify(CNN, write(folder / "layout.json", {"dp": 2, "zero": 1, "microbatches": 2, "stages": stages}), 4)


def test_a_schedule_of_ones_own():
    with Folder() as folder:
        # Both forwards first, then backward in parts, weights last: none of the named ones.
        table = {"name": "mine", "stages": 2, "micro_batches": 2,
                 "ranks": [["F0.0", "F0.1", "I0.1", "I0.0", "W0.0", "W0.1"], ["F1.0", "F1.1", "I1.1", "I1.0", "W1.1", "W1.0"]]}
        path = write(folder / "mine.json", table)
        verify(CNN, f"pp=2,microbatches=2,schedule={path}", 2)
        events, _ = train(folder, CNN, f"pp=2,microbatches=2,schedule={path}", 2)
        check([rank["part"]["most_kept_micro_batches"] for rank in events["ranks"]["ranks"]] == [2, 2], events["ranks"])


def test_bad_files_are_refused_with_a_sentence():
    good = {"microbatches": 2, "stages": [{"layers": CNN_STAGES[0] + CNN_STAGES[1]}, {"layers": CNN_STAGES[2]}]}

    def stages(*layers, **keys):
        return {"stages": [{"layers": list(one), **keys} for one in layers]}

    def schedule(*ranks, stages=2):
        return str(write(folder / f"schedule{len(ranks)}{stages}{ranks[0][0]}.json", {"stages": stages, "micro_batches": 2, "ranks": ranks}))

    first, second = ["F0.0", "F0.1", "B0.0", "B0.1"], ["F1.0", "B1.0", "F1.1", "B1.1"]
    with Folder() as folder:
        bad, two, three = schedule(first[::-1], second), schedule(first, second), schedule(first, second, [])
        four = schedule(["F0.0", "F1.0", "F0.1", "F1.1", "B1.0", "B0.0", "B1.1", "B0.1"], ["F2.0", "F3.0", "B3.0", "B2.0", "F2.1", "F3.1", "B3.1", "B2.1"], stages=4)
        for layout, words in (
                (stages(CNN_STAGES[0], CNN_STAGES[1]), "no stage has layer 'flatten'"),
                (stages([*CNN_STAGES[0], "conv22"], CNN_STAGES[1] + CNN_STAGES[2]), "did you mean 'conv2'"),
                (stages([*CNN_STAGES[0], "conv2"], CNN_STAGES[1] + CNN_STAGES[2]), "in stage 0 and in stage 1"),
                (stages(CNN_STAGES[1] + CNN_STAGES[2], CNN_STAGES[0]), "number the stages so that values flow"),
                ({**good, "stages": [{"layers": ["conv1"], "worker": 2}, *good["stages"]]}, "without gaps"),
                ({**good, "pp": 3}, "pp is 3, but its stages have 2 workers"),
                ({**good, "stages": [{"layers": []}]}, "has no layers"),
                ({**good, "stages": [{"layers": ["conv1"], "dps": 2}]}, "unknown key 'dps'"),
                ({**good, "stages": [{**good["stages"][0], "dp": 0}, good["stages"][1]]}, "stages[0]: expected 1 or more in \"dp\", found 0"),
                ({**good, "dp": 3, "stages": [{**good["stages"][0], "dp": 2}, good["stages"][1]]}, "degrees of their own"),
                ({**good, "microbatch": 2}, "did you mean 'microbatches'"),
                ({"pp": 2, "microbatches": 2, "schedule": bad}, "comes before what it needs"),
                ({"pp": 2, "microbatches": 2, "schedule": three}, "is for 3 ranks, and the pipeline of this layout has 2"),
                ({"pp": 2, "microbatches": 3, "schedule": two}, "is for 2 micro-batches; say microbatches=2"),
                ({**good, "schedule": four}, "is for 4 stages, and the layout names 2"),
                ({"pp": 2, "schedule": str(folder / "none.json")}, "none.json")):
            path = write(folder / "layout.json", layout)
            code, _, err = run(["train", *CNN, "--layout", path, "--workers", "2", "--steps", "1", "--threads", "1", "--quiet", "--run", folder / "run"])
            check(code == 2 and words in err and len(err.strip().splitlines()) == 1, f"{json.dumps(layout)}: {code}, {err}")
        (folder / "layout.json").write_text('{"pp": 2,')
        code, _, err = run(["train", *CNN, "--layout", folder / "layout.json", "--workers", "2", "--run", folder / "run"])
        check(code == 2 and "layout.json" in err and len(err.strip().splitlines()) == 1, err)


if __name__ == "__main__":
    main(globals())

"""cohort report --mlflow: the layout of MLflow's file store, and what of a run it holds."""
import json
import re

from support import TINY, Folder, check, main, run, run_ok


def yaml_of(path):
    """Flat YAML as MLflow writes it: names, and numbers, lists or quoted text."""
    values = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(": ")
        check(value, f"{path}: {line!r}")
        values[name] = value[1:-1].replace("''", "'") if value.startswith("'") else value if value == "active" else json.loads(value)
    return values


def metric(folder, name):
    """[(milliseconds, value, step)], as FileStore._get_metric_from_line reads them."""
    rows = []
    for line in (folder / "metrics" / name).read_text().splitlines():
        milliseconds, value, step = line.split(" ")
        rows.append((int(milliseconds), float(value), int(step)))
    return rows


def test_a_run_in_the_layout_of_mlflow():
    with Folder() as folder:
        lines = run_ok(["train", *TINY, "--steps", "30", "--eval-every", "10", "--clip-norm", "5", "--json", "--run", folder / "it's a run"])
        printed = run_ok(["report", folder / "it's a run", "--mlflow", folder / "mlruns"])
        home = next((folder / "mlruns").glob("*/*/meta.yaml")).parent
        check(printed.strip() == str(home), printed)
        experiment, meta = yaml_of(home.parent / "meta.yaml"), yaml_of(home / "meta.yaml")
        check(re.fullmatch(r"\d{18}", experiment["experiment_id"]) and home.parent.name == experiment["experiment_id"], experiment)
        check(experiment["name"] == "fc:hidden=16 on synthetic:1x8x8,classes=4,samples=512" and experiment["lifecycle_stage"] == "active", experiment)
        check(re.fullmatch(r"[0-9a-f]{32}", meta["run_id"]) and home.name == meta["run_id"] == meta["run_uuid"], meta)
        check(meta["status"] == 3 and meta["run_name"] == "it's a run" and meta["experiment_id"] == experiment["experiment_id"], meta)
        check(meta["artifact_uri"] == f"file://{home}/artifacts" and (home / "artifacts/report.html").exists(), meta)
        steps = [line for line in lines if line["event"] == "step"]
        loss = metric(home, "loss")
        check([row[2] for row in loss] == list(range(1, 31)) and all(abs(row[1] - line["loss"]) < 1e-6 for row, line in zip(loss, steps)), loss)
        check(all(a[0] <= b[0] for a, b in zip(loss, loss[1:])) and meta["start_time"] <= loss[0][0] and loss[-1][0] <= meta["end_time"], (meta, loss[-1]))
        check([row[2] for row in metric(home, "val_loss")] == [10, 20, 30], metric(home, "val_loss"))
        check(len(metric(home, "gradient_norm")) == 30, "gradient norms")
        parameters = {path.name: path.read_text() for path in (home / "params").iterdir()}
        check(parameters["clip_norm"] == "5.0" and parameters["model"] == "fc:hidden=16" and parameters["world_size"] == "1", parameters)
        tags = {path.name: path.read_text() for path in (home / "tags").iterdir()}
        check(tags["mlflow.runName"] == "it's a run" and "train" in tags["mlflow.source.name"], tags)

        # Again: the same folder, anew. Another run of the experiment: beside it.
        (home / "metrics/old").write_text("1 1 1\n")
        run_ok(["train", *TINY, "--steps", "3", "--seed", "2", "--run", folder / "other"])
        both = run_ok(["report", folder / "it's a run", folder / "other", "--mlflow", folder / "mlruns"]).split("\n")[:2]
        check(both[0] == str(home) and len(list((folder / "mlruns").glob("*/*/meta.yaml"))) == 2, both)
        check(not (home / "metrics/old").exists() and not list((folder / "mlruns").glob("*/.*")), "something was left")


def test_how_a_run_ended_and_what_is_refused():
    with Folder() as folder:
        code, _, _ = run(["train", *TINY, "--steps", "50", "--workers", "2", "--inject", "kill:1:5", "--run", folder / "killed"])
        check(code != 0, "it was not killed")
        run_ok(["report", folder / "killed", "--mlflow", folder / "mlruns"])
        check(yaml_of(next((folder / "mlruns").glob("*/*/meta.yaml")))["status"] == 4, "a run that failed")
        (folder / "file").write_text("x")
        for arguments, words in [([folder / "killed", "--mlflow", folder / "file"], "is no folder"), ([folder / "none", "--mlflow", folder / "x"], "no such file"),
                                 ([folder / "killed", "--mlflow", folder / "x", "--out", folder / "a.html"], "not both"), ([folder / "killed", "--mlflow", folder / ("x" * 300)], "File name too long")]:
            code, out, err = run(["report", *arguments])
            check(code == 2 and out == "" and err.count("\n") == 1 and words in err, (arguments, err))
        check(not (folder / "x").exists(), "something was written")


if __name__ == "__main__":
    main(globals())

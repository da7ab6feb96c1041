"""Data with labels, any number of which is right for a sample: the same training and the same average precision whatever the layout, goals of train and of studies,
what evaluate and predict say, and what is refused."""
import array
import csv
import json
import math
import random

from support import Folder, check, main, run, run_ok
from test_own_data import bitwise, write_npy, write_png

NAMES = ("rain", "storm", "bathing")


def write_skies(path, rows=400):
    noise = random.Random(1)
    lines = ["cloud,wind,warmth," + ",".join(NAMES)]
    for _ in range(rows):
        cloud, wind, warmth = (noise.gauss(0, 1) for _ in range(3))
        lines.append(f"{cloud:.3f},{wind:.3f},{warmth:.3f},{int(cloud > 0.5)},{int(wind + cloud > 1)},{int(warmth > cloud)}")
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path},target=" + "+".join(NAMES) + ",task=labels"


def average_precision(scores, labels):
    """By the definition: at each different score, precision times the recall that is gained."""
    total, before, positives = 0, 0, sum(labels)
    for threshold in sorted(set(scores), reverse=True):
        taken = [label for score, label in zip(scores, labels) if score >= threshold]
        total += (sum(taken) - before) / positives * sum(taken) / len(taken)
        before = sum(taken)
    return total


def skies(folder, *more):
    return ["--model", "fc:hidden=16,layers=2", "--data", write_skies(folder / "skies.csv"), "--global-batch", "20", "--lr", "0.3", "--threads", "1", *map(str, more)]


def precisions(run_folder):
    """Of metrics.csv: step and val_precision, the last column."""
    with open(run_folder / "metrics.csv") as file:
        rows = list(csv.reader(file))
    check(rows[0][-2:] == ["val_error", "val_precision"] and all(len(row) == 12 for row in rows), rows[:3])
    check(all(bool(row[9]) == bool(row[11]) for row in rows[1:]), "a row has only one of val_loss and val_precision")
    return [(int(row[0]), float(row[11])) for row in rows[1:] if row[11]]


def refused(arguments, *parts):
    code, out, err = run(arguments)
    check(code == 2 and len(err.strip().splitlines()) == 1 and all(part in err for part in parts), f"{arguments}: exit code {code}\n{out}{err}")


def test_layouts_reach_the_goal_of_a_precision_with_the_same_bits():
    with Folder() as folder:
        results = []
        for number, layout in enumerate((["--workers", "2"], ["--workers", "2", "--layout", "dp=2,zero=2"])):
            lines = run_ok(["train", *skies(folder, "--epochs", "20", "--eval-every", "10", "--goal", "val_precision>0.9", *layout, "--run", folder / f"run{number}"), "--json"])
            evals, done = [line for line in lines if line["event"] == "eval"], lines[-1]
            check(lines[0]["loss"] == "binary" and done["reason"] == "goal" and done["val_precision"] > 0.9, done)
            check(all(line["val_precision"] <= 0.9 for line in evals[:-1]) and evals[-1]["val_precision"] == done["val_precision"], evals)
            check(all(line["event"] not in ("confusion", "mistakes") for line in lines), "labels have no confusion")
            told, table = [(line["step"], line["val_precision"]) for line in evals], precisions(folder / f"run{number}")
            check(len(told) == len(table) and all(a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-8) for a, b in zip(told, table)), (told, table))
            results.append([(line["step"], line["val_loss"], line["val_error"], line["val_precision"]) for line in evals])
        check(results[0] == results[1] and len(results[0]) > 1, results)
        kept = json.loads((folder / "run0" / "data.json").read_text())
        check(kept["task"] == "labels" and kept["classes"] == list(NAMES) and kept["outputs"] == 3 and kept["targets"] == [], kept)
        # It had reached its goal, so it is over.
        again = run_ok(["train", "--run", folder / "run0", "--resume", "--json"])[-1]
        check(again["reason"] == "goal" and again["step"] == results[0][-1][0], again)
        page = (folder / "run0" / "report.html").read_text()
        check("Average precision" in page and "average precision" in page and "Labels right" in page, "the report does not tell the precision")


def test_evaluate_and_predict_say_the_same():
    with Folder() as folder:
        done = run_ok(["train", *skies(folder, "--steps", "40", "--run", folder / "run"), "--json"])[-1]
        found = run_ok(["evaluate", folder / "run", "--json"])[-1]
        check((found["loss"], found["error"], found["precision"]) == (done["val_loss"], done["val_error"], done["val_precision"]), (found, done))
        # By the answers themselves, over all rows.
        answers = run_ok(["predict", folder / "run", folder / "skies.csv", "--json"])
        rows = [list(map(int, line.split(",")[3:])) for line in (folder / "skies.csv").read_text().splitlines()[1:]]
        odds = [[answer["probabilities"][name] for name in NAMES] for answer in answers]
        check(all(answer["labels"] == [name for name, p in zip(NAMES, row) if p > 0.5] for answer, row in zip(answers, odds)), answers[:2])
        mean = sum(average_precision([row[k] for row in odds], [row[k] for row in rows]) for k in range(3)) / 3
        error = sum((p > 0.5) != label for ps, labels in zip(odds, rows) for p, label in zip(ps, labels)) / (3 * len(rows))
        loss = -sum(math.log(p if label else 1 - p) for ps, labels in zip(odds, rows) for p, label in zip(ps, labels)) / (3 * len(rows))
        every = run_ok(["evaluate", folder / "run", "--split", "all", "--json"])[-1]
        check(abs(every["precision"] - mean) < 1e-9 and abs(every["error"] - error) < 1e-12 and abs(every["loss"] - loss) < 1e-5, (every, mean, error, loss))
        # Labels by their names, in a file of other columns; others are refused.
        code, out, _ = run(["predict", folder / "run", folder / "skies.csv"])
        head, first = out.splitlines()[:2]
        check(code == 0 and head == "input,labels,rain,storm,bathing" and first.split(",")[1] == "+".join(answers[0]["labels"]), out[:200])
        text = run(["evaluate", folder / "run"])[1]
        check("of the labels, average precision" in text and "accuracy" not in text, text)
        lines = (folder / "skies.csv").read_text().splitlines()
        (folder / "turned.csv").write_text("\n".join(",".join(reversed(line.split(","))) for line in lines) + "\n")
        turned = run_ok(["evaluate", folder / "run", "--data", f"csv:{folder / 'turned.csv'}", "--split", "all", "--json"])[-1]
        check(abs(turned["precision"] - mean) < 1e-9, turned)
        refused(["evaluate", folder / "run", "--data", f"csv:{folder / 'skies.csv'},target=rain"], "names 1 label, and the model was trained on 3")
        refused(["predict", folder / "run", folder / "skies.csv", "--top", "2"], "predicts labels")
        refused(["compress", "distill", folder / "run", "--student", "fc:hidden=4", "--out", folder / "s.safetensors"], "predicts labels")


def test_tables_arrays_and_pictures_train_the_same_under_every_layout():
    with Folder() as folder:
        layouts = ["dp=2", "dp=2,zero=2", "pp=2,microbatches=2", "tp=2", "dp=2,pp=2,microbatches=5"]
        bitwise(skies(folder), layouts)
        bitwise([*skies(folder), "--precision", "bf16"], layouts)
        noise = random.Random(2)
        x = array.array("f", [noise.gauss(0, 1) for _ in range(60 * 3)])
        write_npy(folder / "n" / "x.npy", "<f4", (60, 3), x)
        write_npy(folder / "n" / "y.npy", "|b1", (60, 2), array.array("B", [int(x[3 * i + k] > 0) for i in range(60) for k in (0, 1)]))
        bitwise(["--model", "fc:hidden=8", "--data", f"npy:{folder / 'n'},task=labels", "--global-batch", "12"], ["dp=2", "pp=2,microbatches=2"])
        table = ["path,bright,even"]
        for i in range(30):
            write_png(folder / "p" / f"{i}.png", 8, 8, 3, lambda x, y, c, i=i: noise.randrange(60) + 7 * i)
            table.append(f"{i}.png,{int(i > 15)},{1 - i % 2}")
        (folder / "p.csv").write_text("\n".join(table) + "\n")
        bitwise(["--model", "cnn:width=0.25", "--data", f"folder:{folder / 'p'},labels={folder / 'p.csv'}", "--global-batch", "12"], ["dp=2", "pp=2,microbatches=2"])


def test_what_does_not_go_with_labels_is_refused():
    with Folder() as folder:
        labels = ["train", *skies(folder, "--steps", "1", "--run", folder / "run")]
        refused([*labels, "--label-smoothing", "0.1"], "trains on the loss binary")
        refused([*labels, "--loss", "mse"], "is not for labels", "use binary")
        refused([*labels, "--metrics", "f1"], "f1 is for classes, and these data have labels; for these data there are only metrics that COHORT_METRIC registers")
        refused([*labels, "--goal", "val_precision<0.5"], "higher is better for a precision; use val_precision>0.5")
        refused(["train", "--model", "fc:hidden=4", "--data", "synthetic:7,samples=40", "--global-batch", "8", "--steps", "1", "--goal", "val_precision>0.5", "--run", folder / "run"], "an average precision is of labels (task=labels)", "use val_error")
        run_ok(["train", "--model", "fc:hidden=4", "--data", "synthetic:7,samples=40", "--global-batch", "8", "--steps", "1", "--run", folder / "teacher"])
        refused([*labels, "--teacher", folder / "teacher"], "is for classes, and these data have labels")
        (folder / "bad.csv").write_text("a,b\n1,1\n2,0.5\n3,0\n")
        refused(["train", "--model", "fc:hidden=4", "--data", f"csv:{folder / 'bad.csv'},target=b,task=labels", "--global-batch", "1", "--steps", "1"], "bad.csv:3: b is '0.5', expected 0 or 1")
        refused(["train", "--model", "fc:hidden=4", "--data", "synthetic:7,classes=3,labels=4", "--global-batch", "1", "--steps", "1"], "give one of the two")


STUDY = """
[workload]
name = "labels"
data = "synthetic:1x8x8,{scores}=4,samples=400,noise=2"
model = "fc:hidden=16"
optimizer = "momentum"

[study]
goals = ["val_precision>0.8", "val_loss<0.4"]
batch_sizes = [4, 32]
trials = 5
steps = 600
evaluate_train = true

[search]
learning_rate = {{ scale = "log", min = 1e-3, max = 1 }}
momentum = {{ values = [0.9] }}
{more}"""


def test_a_study_stops_trials_by_a_precision_and_reports_it():
    with Folder() as folder:
        (folder / "s.toml").write_text(STUDY.format(scores="labels", more=""))
        lines = run_ok(["study", "run", folder / "s.toml", "--out", folder / "one", "--json"], timeout=300)
        trials = [line for line in lines if line["event"] == "trial"]
        counted = [line for line in trials if line["status"] in ("COMPLETE", "CENSORED")]
        check(len(counted) >= 10 and all("best_val_precision" in line for line in counted), trials)
        # A higher one reaches it: who did needs no more steps, and later trials are cut at its.
        reached = [line for line in counted if line["best_val_precision"] > 0.8]
        check(len(reached) >= 3 and all(line["steps"] < 600 for line in counted), counted)
        steps = [line for line in lines if line["event"] == "steps_to_result"]
        check([line["batch_size"] for line in steps] == [4, 32] and all(0 < line["steps"] < 600 for line in steps), steps)
        again = run_ok(["study", "run", folder / "s.toml", "--out", folder / "two", "--workers", "2", "--json"], timeout=300)
        check([line for line in again if line["event"] == "steps_to_result"] == steps, again)
        run_ok(["study", "report", folder / "one", "--quiet", "--out", folder / "page.html"])
        page = (folder / "page.html").read_text()
        check("val_precision&gt;0.8" in page and "best val_precision" in page, "the report does not show the goal")
        (folder / "s.toml").write_text(STUDY.format(scores="classes", more=""))
        refused(["study", "run", folder / "s.toml", "--out", folder / "three", "--quiet"], "goal val_precision>0.8: a precision is of labels (task=labels)")
        (folder / "s.toml").write_text(STUDY.format(scores="labels", more="label_smoothing = { values = [0.1] }\n"))
        refused(["study", "run", folder / "s.toml", "--out", folder / "four", "--quiet"], "label_smoothing is about the cross-entropy of classes", "has labels; leave it out")


if __name__ == "__main__":
    main(globals())

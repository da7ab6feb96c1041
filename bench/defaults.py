#!/usr/bin/env python3
"""Whether everything that trains learns with its defaults: each family of models with each optimizer, and each verb on what that training made.

    bench/defaults.py [--families fc,cnn,resnet8,vgg11,lstm,transformer] [--optimizers sgd,momentum,nesterov,adam,adamw] [--verbs train,taught,distil,prune,channels,2:4,qat8,qat4,search,study] [--seeds 3]
                      [--steps 400] [--teacher-steps 1600] [--temperature T] [--alpha A] [--pictures fashion-mnist] [--text text:/usr/share/common-licenses] [--short] [--keep DIR] [--json]

No rate, temperature or weight is given, so all are defaults; --temperature and --alpha try others with a teacher. A row has the error at the end, that of always giving the same answer, and a verdict: "learns", "learns nothing", or "fails" with the reason; of `taught`
(train --teacher) and `distil` also the error of the same student alone, and whether the teacher helped, as means over --seeds; at a constant rate the last step alone says little, so these errors are means of the evaluations
after 6, 7 and 8 eighths of the training. Verbs begin with one training of --teacher-steps; they and students have --steps.
--short: few steps of small made-up data and one seed, for a test; whether a teacher helps is not judged then. Exit code 1 where a row does not learn, or a teacher hurts. --keep DIR keeps runs, and takes those that are there.
"""
import argparse
import json
import statistics
import sys

from compressed_rows import Folder, folder_of
from support import run

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
VERBS = ("train", "taught", "distil", "prune", "channels", "2:4", "qat8", "qat4", "search", "study")
# The model that verbs begin with, and a student of it.
MODELS = {"fc": ("fc:hidden=256", "fc:hidden=32"), "cnn": ("cnn:width=0.5", "cnn:width=0.2"), "resnet8": ("resnet8", "resnet8:width=6"), "vgg11": ("vgg11:width=16", "vgg11:width=6"),
          "lstm": ("lstm", "lstm:width=32,hidden=64"), "transformer": ("transformer", "transformer:width=24")}
TEXT_FAMILIES = ("lstm", "transformer")
WAYS = {"prune": ["prune"], "channels": ["prune", "--granularity", "channel"], "2:4": ["prune", "--granularity", "2:4"], "qat8": ["quantize", "--scheme", "qat"], "qat4": ["quantize", "--scheme", "qat", "--bits", "4"]}
SHORT = {"pictures": "synthetic:1x12x12,classes=6,samples=3000,noise=3,seed=0", "text": "synthetic:text,samples=600,seed=0", "steps": 60, "teacher_steps": 300, "seeds": 1}
STUDY = """[workload]
data = "{data}"
model = "{model}"
optimizer = "{optimizer}"
val_samples = {val_samples}

[study]
goals = ["val_error<{goal}"]
batch_sizes = [{batch}]
trials = 4
steps = {steps}

[search]
learning_rate = {{ scale = "log", min = {low}, max = {high} }}
{more}
"""


def eighth(steps):
    return max(1, steps // 8)


class Cell:
    """A family with an optimizer: its runs, each made when it is first asked for."""

    def __init__(self, folder, family, optimizer, options):
        self.folder, self.family, self.optimizer, self.options = folder / f"{family}-{optimizer}", family, optimizer, options
        self.folder.mkdir(exist_ok=True)
        self.data = options.text if family in TEXT_FAMILIES else options.pictures
        self.model, self.student = MODELS[family]
        self.taught = [word for name in ("temperature", "alpha") if getattr(options, name) is not None for word in (f"--{name}", getattr(options, name))]
        self.common = ["--data", self.data, "--val-samples", options.val_samples, "--threads", "1"]

    def command(self, *arguments):
        """The last line of JSON; a sentence where it fails."""
        code, out, err = run([*map(str, arguments), "--json"], timeout=3600)
        if code != 0:
            raise RuntimeError((err.strip().splitlines() or ["no word"])[-1])
        return json.loads(out.strip().splitlines()[-1])

    def train(self, name, model, steps, *more):
        place = self.folder / name
        if not (place / "report.html").exists():
            self.command("train", "--model", model, *self.common, "--optimizer", self.optimizer, "--global-batch", "64", "--steps", steps, "--eval-every", eighth(steps), "--checkpoint-every", "end",
                         "--test-samples", "0", *(["--sample-bytes", "0"] if self.family in TEXT_FAMILIES else []), "--run", place, "--quiet", *more)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        done = next(line for line in lines if line["event"] == "done")
        late = [line["val_error"] for line in lines if line["event"] == "eval"][-3:]
        return {**done, "late_error": statistics.mean(late or [done["val_error"]])}

    def base(self):
        return self.train("base", self.model, self.options.teacher_steps)

    def alone(self, seed):
        return self.train(f"alone-{seed}", self.student, self.options.steps, "--seed", seed)["late_error"]

    def distilled(self, seed):
        place = self.folder / f"distilled{''.join(self.taught)}-{seed}"
        if not (place / "report.html").exists():
            self.command("compress", "distill", self.folder / "base", "--student", self.student, "--steps", self.options.steps, "--eval-every", eighth(self.options.steps), "--seed", seed, "--threads", "1", *self.taught,
                         "--run", place, "--out", f"{place}.safetensors")
        return self.train(f"distilled{''.join(self.taught)}-{seed}", self.student, 0)["late_error"]

    def study(self):
        place = self.folder / "study"
        rate = json.loads((self.folder / "base/metrics.jsonl").read_text().splitlines()[0])["optimizer"]["lr"]
        more = "momentum = 0.9" if self.optimizer in ("momentum", "nesterov") else ""
        (self.folder / "study.toml").write_text(STUDY.format(data=self.data, model=self.student, optimizer=self.optimizer, val_samples=self.options.val_samples, goal=(self.base()["guess_val_error"] + self.alone(1)) / 2,
                                                             batch=64, steps=self.options.steps, low=rate / 4, high=rate * 2, more=more))
        if not place.exists():
            code, _, err = run(["study", "run", self.folder / "study.toml", "--out", place], timeout=3600)
            if code != 0:
                raise RuntimeError(err.strip().splitlines()[-1])
        name = "of-study"
        if not (self.folder / name / "report.html").exists():
            self.command("train", "--study", place, "--global-batch", "64", "--threads", "1", "--steps", self.options.steps, "--test-samples", "0", "--run", self.folder / name, "--quiet")
        return self.train(name, self.student, 0)["val_error"]

    def row(self, verb):
        row = {"family": self.family, "optimizer": self.optimizer, "verb": verb}
        try:
            base = self.base()
            row["guess"] = base["guess_val_error"]
            seeds = range(1, self.options.seeds + 1)
            if verb == "train":
                row["error"] = base["val_error"]
            elif verb in ("taught", "distil"):
                teach = self.distilled if verb == "distil" else lambda seed: self.train(f"taught{''.join(self.taught)}-{seed}", self.student, self.options.steps, "--seed", seed, "--teacher", self.folder / "base", *self.taught)["late_error"]
                errors = [teach(seed) for seed in seeds]
                row.update(errors=errors, error=statistics.mean(errors), worst=max(errors), alone=statistics.mean(self.alone(seed) for seed in seeds))
            elif verb == "search":
                row["error"] = self.command("compress", "search", self.folder / "base", "--max-error-increase", "5%", "--out", self.folder / "search.safetensors", "--threads", "1")["val_error"]
            elif verb == "study":
                row["error"] = self.study()
            else:
                place = self.folder / verb.replace(":", "-")
                row["error"] = self.command("compress", *WAYS[verb], self.folder / "base", "--steps", self.options.steps, "--threads", "1", "--run", place, "--out", f"{place}.safetensors")["val_error"]
        except RuntimeError as error:
            refused = "channel" in str(error) and verb == "channels"
            return {**row, "verdict": "refused" if refused else "fails", "reason": str(error)}
        learns = row.get("worst", row["error"]) < 0.98 * row["guess"]
        return {**row, "verdict": "learns nothing" if not learns else "learns" if "alone" not in row or self.options.short else "learns, helped" if row["error"] < row["alone"] else "learns, hurt"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(MODELS))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--teacher-steps", type=int, default=1600)
    parser.add_argument("--temperature")
    parser.add_argument("--alpha")
    parser.add_argument("--pictures", default="fashion-mnist")
    parser.add_argument("--text", default="text:/usr/share/common-licenses")
    parser.add_argument("--val-samples", type=int, default=500)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.short:
        vars(options).update(SHORT)
    rows = []
    with Folder() as temporary:
        folder = folder_of(options, temporary)
        if not options.json:
            print("| family | optimizer | verb | error | a constant answer's | alone | verdict |\n|---|---|---|---|---|---|---|")
        for family in options.families.split(","):
            for optimizer in options.optimizers.split(","):
                cell = Cell(folder, family, optimizer, options)
                for verb in options.verbs.split(","):
                    rows.append(cell.row(verb))
                    print(json.dumps(rows[-1]) if options.json else line_of(rows[-1]), flush=True)
    bad = [row for row in rows if row["verdict"] in ("fails", "learns nothing", "learns, hurt")]
    print(f"{len(rows) - len(bad)} of {len(rows)} learn", file=sys.stderr)
    sys.exit(1 if bad else 0)


def line_of(row):
    percent = [f"{100 * row[key]:.2f} %" if key in row else "" for key in ("error", "guess", "alone")]
    return f"| {row['family']} | {row['optimizer']} | {row['verb']} | {' | '.join(percent)} | {row['verdict']}{': ' + row['reason'] if 'reason' in row else ''} |"


if __name__ == "__main__":
    main()

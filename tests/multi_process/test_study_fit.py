"""`cohort study fit`: lines of --json, the table for people, studies as archives, and what is refused."""
import json
import math

from support import Folder, check, main, run, run_ok

# Zhang et al. 2024, 85M parameters: published steps.
PUBLISHED = {64: 46000, 128: 23000, 256: 13282, 512: 7000, 1024: 3840, 2048: 2528, 4096: 1917, 8192: 1600, 16384: 1600}


def write_table(folder, steps):
    path = folder / "table.csv"
    path.write_text("batch_size,steps\n" + "".join(f"{batch},{count}\n" for batch, count in steps.items()))
    return path


def write_archive(folder, best_unit=lambda batch: 0.5):
    """Trials in the layout of the published archive: S = 200 (1 + 60 / B) at the best learning rate of [1e-3, 1]."""
    for batch in (8, 16, 32, 64, 128, 256, 512, 1024):
        least = 200 * (1 + 60 / batch)
        budget = int(6 * least)
        study = folder / "made-up" / "none" / "sgd" / str(batch)
        study.mkdir(parents=True)
        space = {"learning_rate": {"type": "DOUBLE", "scale": "LOG_SCALE", "min_value": 1e-3, "max_value": 1.0}}
        head = {"batch_size": batch, "dataset": "made-up", "early_stopping": False, "model": "none", "optimizer": "sgd", "train_steps": budget, "parameter_configs": space}
        (study / "study.json").write_text(json.dumps(head))
        for trial in range(1, 31):
            unit = (trial - 0.5) / 30
            steps = math.ceil(least * math.exp(1.5 * abs(unit - best_unit(batch)) + 0.01 * ((7 * trial + batch) % 5)))
            evaluated = sorted({round(1.03**i) for i in range(400) if 1.03**i < budget} | {0, budget})
            rows = [f"{step},{0.05 if step >= steps else 0.4}" for step in evaluated]
            place = study / str(trial)
            place.mkdir()
            (place / "measurements.csv").write_text("\n".join(["step,val/classification_error", *rows]) + "\n")
            (place / "metadata.json").write_text(json.dumps({"parameters": {"learning_rate": 10 ** (3 * unit - 3)}, "status": "COMPLETE", "steps": budget, "trial_id": trial}))
    return folder


def test_the_published_table_gives_every_digit():
    with Folder() as folder:
        lines = run_ok(["study", "fit", write_table(folder, PUBLISHED), "--law", "all", "--reference-batch", 256, "--json"])
    check([line["event"] for line in lines] == ["fit", "fit", "fit", "regimes"], lines)
    fits = {line["law"]: line for line in lines[:3]}
    check(list(fits) == ["hyperbola", "knee", "log-linear"], fits)
    for fit in fits.values():
        check(list(fit) == ["event", "law", "parameters", "critical_batch_size", "rms_log", "interval"] and fit["interval"] is None, fit)
    fit = fits["log-linear"]
    check(round(fit["parameters"]["a"], 2) == 1293.83 and round(fit["parameters"]["b"]) == 2834258, fit)
    check(round(fit["critical_batch_size"], 1) == 745.3, fit)
    check(fits["knee"]["rms_log"] <= fits["hyperbola"]["rms_log"] == fit["rms_log"], fits)
    check(lines[3] == {"event": "regimes", "perfect_to": 512, "diminishing_to": 4096, "flags": []}, lines[3])


def test_a_table_as_r_writes_it():
    with Folder() as folder:
        table = folder / "quoted.csv"
        table.write_text('"","batch_size","steps"\n' + "".join(f'"{row}",{batch},{count}\n' for row, (batch, count) in enumerate(PUBLISHED.items())))
        plain = run_ok(["study", "fit", write_table(folder, PUBLISHED), "--json"])
        check(run_ok(["study", "fit", table, "--json"]) == plain, "quotes change the fit")


def test_the_note_of_a_law_names_what_the_law_has():
    with Folder() as folder:
        text = run_ok(["study", "fit", write_table(folder, {batch: 1000 + 10**8 // batch for batch in (8, 16, 32, 64, 128, 256)}), "--reference-batch", 128])
    lines = text.splitlines()
    note = lines[next(i for i, line in enumerate(lines) if line.startswith("log-linear")) + 1]
    check("the 20 % critical batch size lies above the largest" in note and "Bc" not in note, text)


def test_one_law_and_its_reference():
    with Folder() as folder:
        table = write_table(folder, PUBLISHED)
        lines = run_ok(["study", "fit", table, "--law", "log-linear", "--json"])
        check(len(lines) == 2 and lines[0]["law"] == "log-linear", lines)
        check(round(lines[0]["critical_batch_size"], 1) == round(745.3201 - 1.2 * (256 - 64), 1), lines)


def test_what_the_data_do_not_bound_is_null():
    with Folder() as folder:
        lines = run_ok(["study", "fit", write_table(folder, {batch: 65536 // batch for batch in (8, 16, 32, 64, 128)}), "--json"])
        check(all(line["critical_batch_size"] is None for line in lines[:3]), lines)
        check(lines[3] == {"event": "regimes", "perfect_to": 128, "diminishing_to": None, "flags": []}, lines[3])
        text = run_ok(["study", "fit", folder / "table.csv"])
    check("no bound" in text and "do not bound the critical batch size" in text and "not left" in text and "still fall at the largest" in text, text)


def test_faults_of_a_table_refuse_regimes():
    with Folder() as folder:
        table = write_table(folder, {8: 4000, 16: 2000, 32: 1000, 64: 500, 128: 420, 256: 640})
        lines = run_ok(["study", "fit", table, "--json"])
        check(lines[-1]["perfect_to"] is None and lines[-1]["diminishing_to"] is None, lines[-1])
        check(len(lines[-1]["flags"]) == 1 and "steps rise from 420 at batch size 128 to 640 at 256" in lines[-1]["flags"][0], lines[-1])
        text = run_ok(["study", "fit", table])
    check("none is named" in text and "steps-rise (refused)" in text, text)


def test_a_study_has_intervals():
    with Folder() as folder:
        archive = write_archive(folder / "archive")
        lines = run_ok(["study", "fit", archive, "--goal", "val_error<0.1", "--json"])
        check(len(lines) == 4, lines)
        for fit in lines[:3]:
            low, high = fit["interval"]
            check(low <= fit["critical_batch_size"] and (high is None or fit["critical_batch_size"] <= high), fit)
        check(abs(lines[0]["critical_batch_size"] / 60 - 1) < 0.25, lines[0])
        check(lines[3]["flags"] == [] and lines[3]["perfect_to"] == 16 and lines[3]["diminishing_to"] == 256, lines[3])
        check(run_ok(["study", "fit", archive, "--goal", "val_error<0.1", "--json"]) == lines, "another answer the second time")
        text = run_ok(["study", "fit", archive, "--goal", "val_error<0.1"])
        check("30 of 30" in text and "perfect scaling to 16 (95 %: " in text and "none speaks against" in text, text)
        code, _, err = run(["study", "fit", archive])
        check(code == 2 and "give --goal" in err, (code, err))
        code, _, err = run(["study", "fit", archive, "--goal", "val_error<0.1", "--reference-batch", "9"])
        check(code == 2 and "there are 8 16 32 64 128 256 512 1024" in err, (code, err))
        code, _, err = run(["study", "fit", archive, "--goal", "val_error<0.01", "--law", "knee"])
        check(code == 2 and "needs at least 4 batch sizes" in err, (code, err))
        lines = run_ok(["study", "fit", archive, "--goal", "val_error<0.01", "--json"])
        check(len(lines) == 1 and lines[0]["perfect_to"] is None and len(lines[0]["flags"]) == 9, lines)


def test_best_at_a_bound_offers_the_wider_spec():
    with Folder() as folder:
        archive = write_archive(folder / "archive", best_unit=lambda batch: 1.0 if batch == 64 else 0.5)
        text = run_ok(["study", "fit", archive, "--goal", "val_error<0.1"])
    check("bound (refused): the best trial at batch size 64" in text, text)
    check('[batch.64.search]\nlearning_rate = { type = "double", scale = "log", min = 0.001, max = 10 }\n' in text, text)


def test_wrong_usage_is_refused_with_a_sentence():
    with Folder() as folder:
        good, few, bad = write_table(folder, PUBLISHED), folder / "few.csv", folder / "bad.csv"
        few.write_text("batch_size,steps\n8,100\n16,50\n")
        bad.write_text("batch_size,steps\n8,100\n16,many\n")
        for arguments, word in (
            ([], "takes one table"),
            ([good, good], "one word too many"),
            ([folder / "none.csv"], "No such file"),
            (["/dev/zero"], "not a regular file"),
            ([folder], ""),
            ([few], "needs at least 3 batch sizes"),
            ([bad], "bad.csv:3: steps is 'many', expected a positive number"),
            ([good, "--law", "cubic"], "expected hyperbola, knee or log-linear"),
            ([good, "--reference-batch", "0"], "above 0"),
            ([good, "--reference-batch", "5"], "--reference-batch 5 was not measured as a batch size; there are 64 128 256 512 1024 2048 4096 8192 16384"),
            ([good, "--reference-batch", "64.5"], "--reference-batch 64.5 was not measured as a batch size"),
            ([good, "--reference-batch", "1e300"], "was not measured as a batch size"),
            ([good, "--reference-batch", "256", "--law", "hyperbola"], "--reference-batch is of the law log-linear alone, and --law is hyperbola"),
            ([good, "--reference-batch", "256", "--law", "knee"], "give --law log-linear"),
            ([good, "--goal", "val_error<0.1"], "is a table"),
            ([good, "--goal", ""], "the value is empty; give --goal GOAL"),
            ([folder, "--goal", ""], "the value is empty; give --goal GOAL"),
        ):
            code, out, err = run(["study", "fit", *arguments])
            check(code == 2 and word in err and not out, (arguments, code, out, err))


if __name__ == "__main__":
    main(globals())

"""`cohort bench forecast`: forecasts of published steps, a line a row, errors of the rows that were not fitted last."""
import json
import pathlib
import tempfile

from support import check, main, run, run_ok

HEADER = ("# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,data parallelism,"
          "pipeline parallelism,iteration time (ms)")


def table(folder, scale=1.0):
    """Steps that cost what their operations cost, a device as fast as an A100, and 20 ms besides."""
    lines = [HEADER]
    for width in (1024, 2048, 4096):
        for layers in (12, 24):
            for tensor, data in ((1, 1), (2, 1), (1, 4), (2, 4)):
                for micro in (2, 4, 8):
                    batch = 16 * data
                    operations = 96 * batch * 1024 * layers * width * width / (tensor * data)
                    lines.append(f"{tensor * data},{batch},{micro},{width},16,{layers},1024,{tensor},{data},1,{scale * (20 + operations / 1.5e11):.6f}")
    path = pathlib.Path(folder) / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path, len(lines) - 1


def test_half_of_the_rows_fit_and_the_others_judge():
    with tempfile.TemporaryDirectory() as folder:
        path, rows = table(folder)
        lines = run_ok(["bench", "forecast", "--format", "vtrain", path, "--json"])
        *forecasts, errors = lines
        check([line["row"] for line in forecasts] == list(range(1, rows + 1)), forecasts)
        check(sum(line["fitted"] for line in forecasts) == rows // 2 and errors["rows"] == rows - rows // 2, errors)
        for line in forecasts:
            check(line["event"] == "forecast" and line["interval"][0] < line["predicted_seconds"] < line["interval"][1], line)
        unfitted = run_ok(["bench", "forecast", "--format", "vtrain", path, "--json", "--fit", "0"])[-1]
        check(unfitted["rows"] == rows and errors["median_error"] < 0.2 and errors["median_error"] < unfitted["median_error"], f"{errors} {unfitted}")
        mine = [line for line in forecasts if not line["fitted"]]
        worked_out = sorted(abs(line["predicted_seconds"] / line["measured_seconds"] - 1) for line in mine)
        middle = (worked_out[(len(mine) - 1) // 2] + worked_out[len(mine) // 2]) / 2
        check(abs(errors["median_error"] - middle) < 1e-9, f"{errors['median_error']} {middle}")
        slower, _ = table(folder, scale=3)
        again = run_ok(["bench", "forecast", "--format", "vtrain", slower, "--json"])[-1]
        check(again["median_error"] < 0.3 and abs(again["bias"]) < 0.4, again)  # A machine a third as fast is fitted as well.
        out = run(["bench", "forecast", "--format", "vtrain", path, path])[1]
        check(out.count("rows were not fitted") == 2, out)


def test_a_folder_of_sailor_has_times_and_memory():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "profiles/tiny").mkdir(parents=True)
        model = {"model": "tiny", "hidden_size": 1024, "num_layers": 1, "heads": 16, "sequence_length": 512, "vocab_size": 1000}
        (folder / "training_tiny.json").write_text(json.dumps(model))
        times = {str(micro): {str(tensor): {"1": [0.001 * micro, 0.002 * micro, 0.001]} for tensor in (1, 2)} for micro in range(1, 13)}
        (folder / "profiles/tiny/A100-40.json").write_text(json.dumps(times))
        *rows, errors = run_ok(["bench", "forecast", "--format", "sailor", folder, "--json"])
        check(len(rows) == 24 and errors["rows"] == 12 and "memory_rows" not in errors and errors["groups"] == 1, errors)
        check(abs(rows[2]["measured_seconds"] - 0.007) < 1e-12, rows[2])  # Micro-batch 2, degree 1.
        kept = {"1": {"1": {"params_bytes": 5e7, "act_mem_bytes": 5e7}}}
        (folder / "layer_memory.json").write_text(json.dumps({"tiny": kept}))
        *rows, memory, errors = run_ok(["bench", "forecast", "--format", "sailor", folder, "--json"])
        check(memory["event"] == "memory_forecast" and memory["measured_bytes"] == 1e8, memory)
        check(abs(errors["memory_median_error"] - abs(memory["predicted_bytes"] / 1e8 - 1)) < 1e-12 and errors["memory_rows"] == 1, errors)
        (folder / "profiles/tiny/A100-40.json").rename(folder / "profiles/tiny/A100-41.json")
        code, out, err = run(["bench", "forecast", "--format", "sailor", folder])
        check(code == 2 and "no GPU 'A100-41' (did you mean 'A100-40'?)" in err and len(err.splitlines()) == 1 and not out, f"{code} {err}")


def test_what_it_refuses():
    with tempfile.TemporaryDirectory() as folder:
        path, _ = table(folder)
        broken = pathlib.Path(folder) / "broken.csv"
        broken.write_text(path.read_text().replace("1024,1,1,1,", "1024,1,1,2,", 1))
        for arguments, text in ((["--format", "vtrain"], "files of that format"), ([path], "--format vtrain or"),
                                (["--format", "vtrian", path], "did you mean 'vtrain'"), (["--format", "vtrain", broken], "broken.csv:2: # GPUs"),
                                (["--format", "vtrain", path, "--fit", "0.9"], "--fit 0.9"), (["--format", "vtrain", path, "--rounds", "2"], "--rounds"),
                                (["--format", "llm-foundry", path], "no column 'gpu'"), (["--format", "vtrain", f"{path}x"], "steps.csvx")):
            code, out, err = run(["bench", "forecast", *arguments])
            check(code == 2 and text in err and len(err.splitlines()) == 1 and not out, f"{arguments}: exit code {code}: {err}")


if __name__ == "__main__":
    main(globals())

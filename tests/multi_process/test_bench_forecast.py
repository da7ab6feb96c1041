"""`cohort bench forecast`: forecasts of published steps, a line a row, errors of the rows that were not fitted last."""
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

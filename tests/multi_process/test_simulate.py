"""`cohort simulate`: the line of --json, tables read back, charts, and what is refused."""
import json
import xml.etree.ElementTree

from support import Folder, check, main, run, run_ok


def line_of(*arguments):
    lines = run_ok(["simulate", *arguments, "--json"])
    check(len(lines) == 1, lines)
    return lines[0]


def test_the_line_has_what_theory_says():
    line = line_of("--schedule", "1f1b", "--stages", 4, "--microbatches", 8)
    check(list(line) == ["event", "schedule", "stages", "microbatches", "makespan", "bubble", "peak_stash"], line)
    check(line["event"] == "simulate" and line["schedule"] == "1f1b" and line["stages"] == 4 and line["microbatches"] == 8, line)
    check(line["makespan"] == 33 and abs(line["bubble"] - 3 / 11) < 1e-12 and line["peak_stash"] == [4, 3, 2, 1], line)
    # Two stages a rank: times are those of a rank's whole share, and stash counts in shares.
    line = line_of("--schedule", "interleaved:2", "--stages", 4, "--microbatches", 8)
    check(abs(line["bubble"] - 3 / 19) < 1e-12 and line["peak_stash"] == [5.5, 4.5, 3.5, 2.5], line)
    line = line_of("--schedule", "zb-h1", "--stages", 4, "--microbatches", 8)
    check(line["makespan"] == 27, line)
    line = line_of("--schedule", "zb-v", "--stages", 4, "--microbatches", 8)
    check(line["peak_stash"] == [4, 4, 4, 4], line)


def test_times_a_rank_and_transfers():
    line = line_of("--schedule", "gpipe", "--stages", 2, "--microbatches", 1, "--forward", "1,2", "--backward-input", 3, "--backward-weight", "0,4", "--transfer", 0.5)
    check(line["makespan"] == 1 + 0.5 + 2 + 3 + 4 + 0.5 + 3, line)


def test_a_table_that_was_written_is_read_back():
    with Folder() as folder:
        table, svg, trace = folder / "zb.json", folder / "zb.svg", folder / "zb.trace"
        made = line_of("--schedule", "zb-v", "--stages", 3, "--microbatches", 5, "--out", table, "--svg", svg, "--trace", trace)
        again = line_of("--schedule", table)
        check(again == made, (again, made))
        check(xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg"), svg.read_text()[:200])
        spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
        check(len(spans) == 3 * 2 * 5 * 3, len(spans))
        broken = json.loads(table.read_text())
        broken["ranks"][1][0], broken["ranks"][1][-1] = broken["ranks"][1][-1], broken["ranks"][1][0]
        table.write_text(json.dumps(broken))
        code, _, err = run(["simulate", "--schedule", table])
        check(code == 2 and "rank 1, action " in err, err)
        code, _, err = run(["simulate", "--schedule", table, "--stages", 2])
        check(code == 2 and "leave out --stages" in err, err)


def test_the_chart_is_for_people():
    out = run_ok(["simulate", "--schedule", "1f1b", "--stages", 2, "--microbatches", 2, "--chart"])
    check("rank 0 |F0" in out and "rank 1 |." in out and "bubble" in out, out)
    code, out, err = run(["simulate", "--json", "--chart"])
    check(code == 0 and len(out.splitlines()) == 1 and "rank 0 |" in err, (out, err))


def test_wrong_usage_is_refused_with_a_sentence():
    for arguments, word in (
        (["--schedule", "zb-h2"], "did you mean 'zb-h1'?"),
        (["--schedule", "none.json"], "none.json"),
        (["--stages", 0], "--stages"),
        (["--microbatches", "x"], "--microbatches"),
        (["--forward", "1,2"], "each of the 4 ranks"),
        (["--forward", "-1"], "expected a number of at least 0"),
        (["--forward", ""], "--forward"),
        (["--transfer", "nan"], "expected a number of at least 0"),
    ):
        code, out, err = run(["simulate", *arguments])
        check(code == 2 and word in err and not out, (arguments, code, out, err))


if __name__ == "__main__":
    main(globals())

"""The command line as shells and readers meet it: help of verbs and actions, completion in a real bash, runs side by side."""
import json
import os
import pathlib
import shutil
import subprocess

from support import COHORT, TINY, Folder, check, main, run, run_ok


def completed(words, folder):
    """What bash would offer for the last word."""
    script = folder / "completion.bash"
    if not script.exists():
        script.write_text(run_ok(["completion", "bash"]))
    line = " ".join(f"'{word}'" for word in words)
    code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; compopt() {{ :; }}; _cohort; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    result = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    check(not result.stderr, result.stderr)
    return [word for word in result.stdout.splitlines() if word]


def test_bash_completes_verbs_actions_options_and_values():
    with Folder() as folder:
        check({"train", "study", "help"} <= set(completed(["cohort", ""], folder)), "verbs")
        check(completed(["cohort", "tra"], folder) == ["train"], "a verb")
        check(completed(["cohort", "study", "re"], folder) == ["report"], "an action")
        check("--global-batch" in completed(["cohort", "train", "--gl"], folder), "an option")
        check(completed(["cohort", "checkpoint", "info", "--with"], folder) == [], "an option that the action does not read")
        check(completed(["cohort", "checkpoint", "export", "--with"], folder) == ["--without-aliases"], "an option that it reads")
        backends = completed(["cohort", "train", "--backend", ""], folder)
        check({"shm", "gloo"} <= set(backends) and "nothing" not in backends, backends)
        check(completed(["cohort", "train", "--run", "x"], folder) == [], "a value: files are the shell's")
        check(completed(["cohort", "nothing", "--"], folder) == [], "a verb that there is not")
        for shell, check_syntax in (("zsh", "-n"), ("fish", "--no-execute")):
            (folder / shell).write_text(run_ok(["completion", shell]))
            if shutil.which(shell):
                subprocess.run([shell, check_syntax, folder / shell], check=True)
        for words in (["completion"], ["completion", "csh"], ["completion", "bash", "zsh"]):
            code, out, err = run(words)
            check(code == 2 and not out and len(err.strip().splitlines()) == 1, (words, code, out, err))


def test_a_copy_without_the_program_of_benchmarks_says_how_to_get_it():
    check(run_ok(["bench", "plan", "-h"]) == run_ok(["help", "bench", "plan"]), "two ways to the help of a benchmark")
    with Folder() as folder:
        alone = shutil.copy(COHORT, folder / "cohort")
        for words in (["bench", "step"], ["bench", "-h"], ["help", "bench"]):
            done = subprocess.run([alone, *words], capture_output=True, text=True)
            check(done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1 and "source checkout" in done.stderr, (words, done))


def test_help_of_a_verb_of_an_action_and_in_a_narrow_terminal():
    whole, action = run_ok(["help", "study"]), run_ok(["study", "fit", "-h"])
    check(whole == run_ok(["study", "-h"]) and action == run_ok(["help", "study", "fit"]), "two ways to the same page")
    check("--halving" in whole and "--halving" not in action and "--law" in action, action)
    narrow = subprocess.run([COHORT, "help", "train"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "60"}).stdout
    text = [line for line in narrow.splitlines() if line.startswith("      ") and " " in line.strip() and line[6] != " "]
    check(len(text) > 50 and max(map(len, text)) <= 60, max(text, key=len))
    check(run_ok(["version"]) == run_ok(["--version"]), "version")
    code, out, err = run(["help", "trian"])
    check(code == 2 and not out and "did you mean 'train'" in err, err)


def test_with_json_the_reason_of_the_end_is_json_on_stderr():
    with Folder() as folder:
        for words, code in ((["train", *TINY[:4], "--lr", "x", "--json"], 2), (["checkpoint", "info", folder / "none", "--json"], 2), (["trian", "--json"], 2),
                            (["plan", "--instance", folder / "none.json", "--json"], 2),
                            (["train", *TINY[:2], "--data", "text:" + str(folder / "none"), "--workers", 2, "--json"], 2)):
            found, out, err = run(words)
            lines = err.splitlines()
            check(found == code and len(lines) == 1 and not out, (words, found, out, err))
            failed = json.loads(lines[0])
            check(failed["event"] == "failed" and failed["exit_code"] == code, failed)
            plain = run([word for word in words if word != "--json"])
            check(plain[0] == code and plain[2].strip() == "cohort: error: " + failed["cause"], (plain, failed))
        # Of a rank that dies while they train, too, and the run's last line is on stdout as ever.
        found, out, err = run(["train", *TINY, "--workers", 2, "--steps", 50, "--inject", "kill:1:5", "--json", "--run", folder / "killed"])
        check(found != 0 and [json.loads(line)["exit_code"] for line in err.splitlines() if line.startswith("{")] == [found], (found, err))
        check(len([line for line in map(json.loads, out.splitlines()) if line["event"] == "failed"]) == 1, out[-500:])


def test_a_report_lays_runs_side_by_side():
    with Folder() as folder:
        common = ["--steps", 40, "--eval-every", 10, "--quiet"]
        run_ok(["train", *TINY, *common, "--run", folder / "step", "--workers", 2])
        run_ok(["train", *TINY, *common, "--run", folder / "late", "--layout", "sync=async", "--virtual", "workers=4,compute=0.01"])
        run_ok(["train", *TINY, *common, "--run", folder / "slow", "--lr", 0.01, "--workers", 2, "--layout", "sync=async"])
        said = run_ok(["report", folder / "step", folder / "late", folder / "slow", "--out", folder / "all.html"])
        page = (folder / "all.html").read_text()
        check(said.strip() == str(folder / "all.html") and "All runs reached" in page and "<code>lr</code>" in page, said)
        check(all(f"c-run{i}" in page for i in (1, 2, 3)) and "seconds on the virtual clock" in page and "Workers and pushes" in page, "lines and tables")
        check("http" not in page.replace("http://www.w3.org", ""), "a page that needs the network")
        for words, says in ((["report", folder / "step", folder / "late"], "--out"), (["report", folder / "step", "--out", folder / "x.html"], "several runs"),
                            (["report"], "no run given"), (["report", folder / "step", folder / "step", "--out", folder / "x.html"], "twice"),
                            (["report", folder / "step", folder / "none", "--out", folder / "x.html"], "none"),
                            (["report", folder / "step", folder / "late", "--out", folder / "no/such/x.html"], "no/such")):
            code, out, err = run(words)
            check(code == 2 and says in err and len(err.strip().splitlines()) == 1, (words, code, err))
            check(not (folder / "x.html").exists(), words)


def test_names_of_other_programs_are_answered_with_ours():
    for typed, ours in (("--batch-size", "--global-batch"), ("--learning-rate", "--lr"), ("--lr-schedule", "--schedule-lr"), ("--epoch", "--epochs")):
        code, out, err = run(["train", typed, "3"])
        check(code == 2 and ours in err and len(err.strip().splitlines()) == 1, (typed, err))


if __name__ == "__main__":
    main(globals())

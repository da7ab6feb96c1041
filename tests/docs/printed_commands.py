#!/usr/bin/env python3
"""Runs the commands that are printed: every ```sh block of a page, the examples of a verb's -h, what quickstart says to try next.

    printed_commands.py page FILE.md | help VERB | verbs | quickstart [VERB...]

Each runs in a temporary folder that has, of a checkout, only build/release, scripts, examples, studies and clusters (as links); `cohort` is on the path, HOME is the
folder. All blocks of a page run in turn in one shell, which ends at the first command that fails; a ```python block is given to python3. Nothing is replaced in
a command: what is printed works as it is. A block of any other language must say what becomes of it. Comments in a page, invisible to its readers:

    <!-- short: train --steps 3/100; bench step --rounds 1 -->   from here on, commands of these verbs do fewer steps, trials, bytes ...: the options of SHORTER alone.
                                                                 A/B: a B-th of the number that is given, A where none is
    <!-- not run: REASON -->    the next block is not run; the reasons are printed
    <!-- file: NAME -->         the next block is added to the file NAME
    <!-- run: COMMAND -->       a command more; `compile FILE.cpp NAME` makes a program of a file

For -h the table HELP_SHORT stands for the first. Exit code 77: skipped, with a reason."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import COHORT, Folder, check, skip  # noqa: E402

SHORTER = {"steps", "epochs", "trials", "rounds", "sizes", "batch-sizes", "batch", "faults", "val-samples", "test-samples"}   # How much, never how.
HELP_SHORT = """train --steps 3/100 --epochs 0.01 --val-samples 500 --test-samples 200; compress distill --steps 3; verify --steps 2; bench step --rounds 1 --steps 5; bench collectives --rounds 1 --sizes 4,64KiB;
    bench handover --rounds 1 --sizes 4,64KiB; bench messages --rounds 1; bench pipeline --rounds 1 --steps 5; bench study --rounds 1 --steps 20; study run --trials 3 --batch-sizes 256"""
LANGUAGES_THAT_RUN = {"sh", "bash", "shell", "console"}
COMMAND = re.compile(r"^(cohort |mpirun |mpiexec |torchrun |srun |\./scripts/|build/)")
LIMIT_SECONDS = 540


def parse_short(text):
    """[(verb words, {option: value})]"""
    found = []
    for item in filter(None, (part.split() for part in text.split(";"))):
        start = next((i for i, word in enumerate(item) if word.startswith("--")), len(item))
        names, values = item[start::2], item[start + 1::2]
        check(start > 0 and names and len(names) == len(values), f"'{' '.join(item)}': expected VERB --option value ...")
        options = dict(zip((name.removeprefix("--") for name in names), values))
        for name, value in options.items():
            check(name in SHORTER, f"a short variant may set {', '.join(sorted(SHORTER))}, not {name}")
            check(re.fullmatch(r"[0-9.,]+([KM]iB)?|[0-9]+/[0-9]+", value), f"--{name} {value}: expected numbers")
        found.append((item[:start], options))
    return found


def shortened(command, short):
    """The command with smaller numbers. An option that it has is replaced, but never by a larger one; one that it lacks is added (of steps and epochs the one
    that it has, steps where it has neither)."""
    for words, options in short:
        program = r"\S*quickstart" if words == ["quickstart"] else r"\S*(?:cohort|my_program)\s+" + r"\s+".join(map(re.escape, words))
        verb = re.search(program + r"(?=\s|$)", command)
        if not verb or re.search(r"\s(-h|--dry-run)(\s|$)", command):
            continue
        for name, value in options.items():
            given = re.search(rf"\s--{name}[ =](\S+)", command)
            value, _, divisor = value.partition("/")
            if given:
                number = re.fullmatch(r"[0-9.]+", given[1])
                value = str(max(1, int(given[1]) // int(divisor))) if divisor and number else value
                command = command if number and float(given[1]) < float(value) else command[:given.start(1)] + value + command[given.end(1):]
            elif name in ("val-samples", "test-samples") and re.search(r"--(study|resume)\b|synthetic:|text:|config.toml", command):
                continue    # Theirs, or few anyway.
            elif name != "faults" and not re.search(r"--(faults|barrier)\b", command) and not (name == "epochs" and "steps" in options) and not (name == "steps" and re.search(r"\s--epochs[ =]", command)):
                command = f"{command[:verb.end()]} --{name} {value}{command[verb.end():]}"
        break
    return command


def commands_of(block):
    """Logical lines: continued ones are joined; blank lines and comments are left out."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip() and not line.strip().startswith("#")]


def steps_of_page(path):
    """[("run", command) | ("file", name, text) | ("not run", reason)] in the page's order."""
    steps, short, file, reason = [], [], None, None
    parts = re.split(r"^```(\w*)\n(.*?)^```$|^<!-- (short|not run|file|run): (.*?) -->$", path.read_text(), flags=re.M | re.S)
    for language, block, marker, text in zip(parts[1::5], parts[2::5], parts[3::5], parts[4::5]):
        if marker == "short":
            short = parse_short(text)
        elif marker == "not run":
            reason = text
        elif marker == "file":
            file = text
        elif marker == "run":
            steps.append(("run", text))
        else:
            runs = language in LANGUAGES_THAT_RUN
            check(language or file or reason or not COMMAND.match(block), f"{path.name}: a block of commands does not begin with ```sh:\n{block}")
            check(runs or not language or file or reason or language == "python", f"{path.name}: a block of {language} without a comment that says 'file:' or 'not run:'\n{block}")
            if reason:
                steps.append(("not run", f"{reason}: {block.strip().splitlines()[0]} ..."))
            elif file:
                steps.append(("file", file, block))
            elif language == "python":
                steps.append(("run", f"python3 -c {shlex.quote(block)}"))
            elif runs:
                steps += [("run", shortened(command, short)) for command in commands_of(block)]
            file = reason = None
    check(not file and not reason, f"{path.name}: a marker without a block after it")
    return steps


def make_checkout(folder):
    """What commands need of a checkout; scripts are called where they are, since they look for their own."""
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(pathlib.Path(COHORT).parents[1])
    for name in ("examples", "studies", "bench", "clusters"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "scripts").mkdir()
    for script in ("build", "quickstart"):
        (folder / "scripts" / script).write_text(f'#!/bin/sh\nexec {shlex.quote(str(ROOT / "scripts" / script))} "$@"\n')
        (folder / "scripts" / script).chmod(0o755)


def compile_function():
    """A shell function that makes a program as CMake makes an example of this build folder."""
    build = pathlib.Path(COHORT).parents[1]
    entries = [entry["command"] for entry in json.loads((build / "compile_commands.json").read_text()) if "example_recompute.dir" in entry["command"]]
    check(len(entries) == 1, f"no compile command of examples/recompute.cpp in {build}")
    flags = entries[0].partition(" -o ")[0]
    torch = re.search(r"^Torch_DIR:[A-Z]*=(.*)/share/cmake/Torch$", (build / "CMakeCache.txt").read_text(), re.M)[1] + "/lib"
    return f"compile() {{ {flags} -O0 \"$1\" -o \"$2\" -L{build}/lib -L{torch} -lcohort -ltorch_cpu -lc10 -Wl,-rpath,{build}/lib:{torch}; }}"


def run_steps(steps, folder):
    """Runs all; fails with the first command that fails and what it said."""
    script = ["set -e -o pipefail"]
    if any(step[0] == "run" and step[1].startswith("compile ") for step in steps):
        script.append(compile_function())
    for step in steps:
        if step[0] == "run":
            script += [f"printf '\\n+ %s   [after %s s]\\n' {shlex.quote(step[1])} $SECONDS", step[1]]
        elif step[0] == "file":
            script.append(f"mkdir -p \"$(dirname {shlex.quote(step[1])})\" && cat >>{shlex.quote(step[1])} <<'COHORT_END'\n{step[2]}COHORT_END")
        else:
            print("not run,", step[1])
    path = os.pathsep.join([str(pathlib.Path(COHORT).parent), str(ROOT / ".venv/bin"), os.environ["PATH"]])
    environment = dict(os.environ, PATH=path, HOME=str(folder), XDG_CACHE_HOME=str(folder / ".cache"), COHORT_RUNS=str(folder / "runs"), MPIEXEC_ALLOW_ROOT="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    log = folder / "log.txt"
    with open(log, "w") as out:
        process = subprocess.Popen(["bash", "-c", "\n".join(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = f"none after {LIMIT_SECONDS} s"
    text = log.read_text(errors="replace")
    commands = [line[2:] for line in text.splitlines() if line.startswith("+ ")]
    if code != 0:
        failed = text[text.rfind("\n+ "):].strip()
        raise AssertionError(f"exit code {code}:\n{failed[:300]}\n...\n{failed[-2500:]}")
    print("\n".join(commands))
    return text


def examples_of(verb):
    text = subprocess.run([COHORT, verb, "-h"], capture_output=True, text=True, check=True).stdout
    check(text.startswith("Examples:\n"), text[:80])
    return [line.strip() for line in text.partition("\n")[2].partition("\n\n")[0].splitlines()]


def verbs():
    text = subprocess.run([COHORT, "-h"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (?:cohort )?([a-z]+)  +\S", text, re.M)


def page(name):
    with Folder() as folder:
        make_checkout(folder)
        steps = steps_of_page(ROOT / name)
        if any("scripts/" in step[1] for step in steps) and pathlib.Path(COHORT).parents[1] != ROOT / "build/release":
            skip("scripts build build/release, and this is another build folder", also_in_ci=True)
        run_steps(steps, folder)


def help_of(verb):
    with Folder() as folder:
        make_checkout(folder)
        run_steps([("run", shortened(example, parse_short(HELP_SHORT))) for example in examples_of(verb)], folder)


def quickstart():
    """It trains, and the commands that it names next work from another folder than the checkout."""
    if pathlib.Path(COHORT).parents[1] != ROOT / "build/release":
        skip("quickstart builds build/release, and this is another build folder", also_in_ci=True)
    with Folder() as folder:
        make_checkout(folder)
        text = run_steps([("run", "./scripts/quickstart --epochs 0.03")], folder)
        check((folder / "runs/quickstart/report.html").exists(), text)
        named = text.partition("Next, try:\n")[2]
        commands = commands_of(named)
        check(len(commands) >= 4, named)
        with Folder() as elsewhere:
            run_steps([("run", shortened(command, parse_short(HELP_SHORT))) for command in commands], elsewhere)


if __name__ == "__main__":
    what, words = sys.argv[1], sys.argv[2:]
    if what == "page":
        page(words[0])
    elif what == "help":
        help_of(words[0])
    elif what == "verbs":
        check(sorted(verbs()) == sorted(words), f"cohort -h lists {verbs()}, tests/docs/CMakeLists.txt {words}")
    else:
        quickstart()

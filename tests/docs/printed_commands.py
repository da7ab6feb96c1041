#!/usr/bin/env python3
"""Runs the commands that are printed: every ```sh block of a page, the examples of a verb's -h, what quickstart says to try next.

    printed_commands.py page FILE.md | others | help VERB | verbs VERB... | quickstart

Each runs in a temporary folder that has, of a checkout, only build/release, scripts, examples, studies and clusters (as links); `cohort` is on the path, HOME is the
folder. All blocks of a page run in turn in one shell, which ends at the first command that fails; a ```python block is given to python3. Nothing is replaced in
a command: what is printed works as it is. A block of any other language must say what becomes of it. Comments in a page, invisible to its readers:

    <!-- short: train --steps 3/100; bench step --rounds 1 -->   from here on, commands of these verbs do fewer steps, trials, bytes ...: the options of SHORTER alone.
                                                                 A/B: a B-th of the number that is given, A where none is; `<!-- short -->` alone: in full again
    <!-- file: NAME -->         the next block is added to the file NAME, of a ```diff what is new and what stays
    <!-- run: COMMAND -->       a command more; `compile FILE.cpp NAME` makes a program of a file,
                                 `published_tables` the tables of published_tables.py
    <!-- needs: ABILITY -->     the next block is run where the machine has that (ABILITIES); elsewhere it is read as a form
    <!-- form -->               the next block is no commands but their form: its verbs and options are those of -h, its scripts are there
    <!-- part of: FILE -->      the lines of the next block stand in FILE, in that order; `...` stands for anything
    <!-- output -->             what the next block shows was printed by the page's commands: of JSON the same keys, of text the same words, of a table
                                 (no block) the same head

There is no mark for "not run". A command that an earlier page has, or of -h any page, and that leaves nothing behind, is run there alone.
For -h the table HELP_SHORT stands for the first. Exit code 77: skipped, with a reason."""
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/multi_process"))
from support import COHORT, Folder, check, skip  # noqa: E402

SHORTER = {"steps", "epochs", "trials", "rounds", "sizes", "batch-sizes", "batch", "faults", "val-samples", "test-samples", "budget-steps", "budget-epochs", "workload"}   # How much, never how.
HELP_SHORT = """train --steps 3/100 --epochs 0.01 --val-samples 500 --test-samples 200; compress distill --steps 3; verify --steps 2; bench step --rounds 1 --steps 5 --workload mlp-small; bench collectives --rounds 1 --sizes 4,64KiB;
    bench handover --rounds 1; bench messages --rounds 1; bench pipeline --rounds 1 --steps 5 --workload mlp-small; bench study --rounds 1 --steps 20; study run --trials 3 --batch-sizes 256"""
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
            check(re.fullmatch(r"[0-9.,]+([KM]iB)?|[0-9]+/[0-9]+", value) or (name, value) == ("workload", "mlp-small"), f"--{name} {value}: expected numbers, or the smallest workload")
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
            elif name == "workload" and "--delays" in command:
                continue    # It has layers that sleep.
            elif name in ("val-samples", "test-samples") and re.search(r"--(study|resume)\b|synthetic:|text:|config.toml", command):
                continue    # Theirs, or few anyway.
            elif name != "faults" and not re.search(r"--(faults|barrier)\b|--delays(?!.*--model)", command) and not (name == "epochs" and "steps" in options) and not (name == "steps" and re.search(r"\s--epochs[ =]", command)):
                command = f"{command[:verb.end()]} --{name} {value}{command[verb.end():]}"
        break
    return command


def commands_of(block):
    """Logical lines: continued ones are joined; blank lines and comments are left out."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip() and not line.strip().startswith("#")]


def bare(line):
    """Without blanks, comments and our name space."""
    return re.sub(r"\s+|cohort::", "", re.sub(r"(^|\s)(//|# ).*", "", line))


def check_part(page, name, language, block):
    """All lines of the block stand in the file, in that order."""
    whole, at = "".join(map(bare, (ROOT / name).read_text().splitlines())), 0
    lines = [line[1:] for line in block.splitlines() if not line.startswith("-")] if language == "diff" else block.splitlines()
    for line in filter(lambda line: bare(line).strip("."), lines):
        found = re.compile(".{0,300}?".join(map(re.escape, bare(line).split("...")))).search(whole, at)
        check(found, f"{page}: {name} has no line '{line.strip()}' here")
        at = found.end()


def help_text(words):
    return subprocess.run([COHORT, *words, "-h"], capture_output=True, text=True, check=True).stdout


def check_form(page, block):
    """Every verb, option and script of it exists."""
    for command in commands_of(block):
        for part in re.split(r"&&|\|", command.partition(" # ")[0]):
            for script in re.findall(r"(?:^|\s)((?:bench|scripts|packaging|examples)/[\w./-]+)", part):
                check((ROOT / script).exists(), f"{page}: there is no {script}")
            found = re.search(r"(?:^|\s)cohort ([a-z]+)(?: ([a-z]+)(?=\s|$))?(.*)", part)
            if not found:
                continue
            check(found[1] in verbs(), f"{page}: no verb '{found[1]}': {command}")
            text = help_text([found[1]]) + (help_text(found.group(1, 2)) if found[1] in ("bench", "compress", "study", "checkpoint") else "")
            for option in set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]+", found[3])) - {"--option"}:
                check(re.search(rf"{option}\b", text), f"{page}: 'cohort {found[1]}' has no option {option}: {command}")


def shape_of(line):
    """Of a line of JSON its keys, else its words without numbers."""
    if line.startswith("{"):
        found = json.loads(line)
        return (found.get("event"), *sorted(found))
    return re.sub(r"[0-9][0-9.,]*(?: (?:ns|us|ms|s|B|[KMG]iB)\b)?", "N", line).strip()


def check_output(page, block, text):
    printed = set()
    for line in text.splitlines():
        try:
            printed.add(shape_of(line))
        except ValueError:
            pass
    for line in block.splitlines()[:1 if block.startswith("|") else None]:
        check(shape_of(line) in printed, f"{page}: no command of the page printed a line such as\n{line}\nbut\n{text[-3000:]}")


def has_cuda():
    devices = subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode if shutil.which("nvidia-smi") else 1
    return devices == 0 and "CUDA" in subprocess.run([COHORT, "doctor"], capture_output=True, text=True).stdout


# What a command may need that not every machine has, and how to find out.
ABILITIES = {
    "cuda": has_cuda,
    "docker": lambda: bool(shutil.which("docker")) and subprocess.run(["docker", "info"], capture_output=True).returncode == 0,
    "machine to install on": lambda: os.geteuid() == 0 and os.environ.get("COHORT_MAY_INSTALL") == "1",
    "time": lambda: os.environ.get("COHORT_LONG_TESTS") == "1",
}
MARK = re.compile(r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|^<!-- (?P<marker>short|file|run|needs|part of|form|output)(?:: (?P<value>.*?))? -->$(?:\n(?P<table>(?:\|.*\n)+))?", re.M | re.S)


def parts_of(path):
    """(language, block, marker, value) of each block and each mark; a table behind a mark is a block."""
    for found in MARK.finditer(path.read_text()):
        part = {name: text or "" for name, text in found.groupdict().items()}
        yield part["language"], part["block"], part["marker"], part["value"]
        if part["table"]:
            yield "", part["table"], "", ""


def steps_of_page(path):
    """[("run", command) | ("file", name, text) | ("output", text)] in the page's order."""
    steps, short, mark = [], [], None
    check("<!-- not run" not in path.read_text(), f"{path.name}: every printed command is run; see the marks that {pathlib.Path(__file__).name} has")
    for language, block, marker, value in parts_of(path):
        if marker in ("short", "run"):
            check(marker == "short" or not mark, f"{path.name}: 'run: {value}' between a mark and its block")
            if marker == "short":
                short = parse_short(value)
            else:
                steps.append(("run", value))
            continue
        if marker:
            check(not mark, f"{path.name}: two marks for one block, '{marker}: {value}' the second")
            mark = (marker, value)
            continue
        kind, value = mark or ("", "")
        runs = language in LANGUAGES_THAT_RUN
        if kind == "needs":
            check(value in ABILITIES, f"{path.name}: 'needs: {value}'; known are {', '.join(ABILITIES)}")
            runs = runs and ABILITIES[value]()
            if not runs:
                print(f"read as a form, for it needs {value}: {block.splitlines()[0]} ...")
        if kind == "part of":
            check_part(path.name, value, language, block)
        elif kind == "form" or (kind == "needs" and not runs):
            check_form(path.name, block)
        elif kind == "output":
            steps.append(("output", block))
        elif kind == "file":
            lines = [line[1:] for line in block.splitlines() if not line.startswith("-")] if language == "diff" else block.splitlines()
            steps.append(("file", value, "".join(f"{line}\n" for line in lines if line.strip() != "...")))
        elif language == "python":
            steps.append(("run", f"python3 -c {shlex.quote(block)}"))
        elif runs:
            for command in (shortened(command, short) for command in commands_of(block)):
                is_again = leaves_nothing(command) and any(step[0] == "run" and words_of(step[1]) == words_of(command) for step in steps)
                if not is_again and not runs_elsewhere(command, path):
                    steps.append(("run", command))
        else:
            check(not language, f"{path.name}: a block of {language} without a mark that says what becomes of it\n{block}")
            check(not COMMAND.match(block), f"{path.name}: a block of commands does not begin with ```sh:\n{block}")
        mark = None
    check(not mark, f"{path.name}: a mark without a block after it")
    return steps


def pages():
    return sorted([ROOT / "README.md", *(ROOT / "docs/guide").glob("*.md")])


def without_comment(command):
    return command.partition(" # ")[0].strip()


def words_of(command):
    """The same for two commands whose options stand in another order."""
    return tuple(sorted(without_comment(command).split()))


@functools.cache
def commands_of_page(path):
    """words_of() each, as short as they are run."""
    found, short = set(), []
    for language, block, marker, value in parts_of(path):
        if marker == "short":
            short = parse_short(value)
        elif language in LANGUAGES_THAT_RUN:
            found |= {words_of(shortened(command, short)) for command in commands_of(block)}
    return found


def leaves_nothing(command):
    return re.match(r"cohort (doctor|verify|simulate|plan|bench|evaluate|predict|sample|vocabulary|completion)\b", command) and not re.search(r"--(out|trace|run)\b|[>|&$]", without_comment(command))


def runs_elsewhere(command, path=None):
    """Whether a page before this one, or any where there is no `path`, runs the same command, as short, and it leaves nothing behind that a
    later one could need."""
    return leaves_nothing(command) and any(words_of(command) in commands_of_page(page) for page in pages() if not path or page < path)


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
    script.append(f"published_tables() {{ python3 {ROOT}/tests/docs/published_tables.py; }}")
    for step in steps:
        if step[0] == "run":
            script += [f"printf '\\n+ %s   [after %s s]\\n' {shlex.quote(step[1])} $SECONDS", step[1]]
        elif step[0] == "file":
            script.append(f"mkdir -p \"$(dirname {shlex.quote(step[1])})\" && cat >>{shlex.quote(step[1])} <<'COHORT_END'\n{step[2]}COHORT_END")
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
    text = help_text([verb])
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
        text = run_steps([step for step in steps if step[0] != "output"], folder)
        for step in steps:
            if step[0] == "output":
                check_output(name, step[1], text)


def others():
    """Pages outside of the guide: their commands are figures of a day, read as forms."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path in pages():
            continue
        check("<!-- not run" not in path.read_text(), f"{path.name}: 'not run' marks nothing")
        for language, block, marker, value in parts_of(path):
            check(not marker, f"{path.name}: '{marker}: {value}' marks nothing outside of the guide")
            if language in LANGUAGES_THAT_RUN:
                check_form(path.name, block)
            elif language == "python":
                compile(block, path.name, "exec")


def help_of(verb):
    with Folder() as folder:
        make_checkout(folder)
        examples = [shortened(example, parse_short(HELP_SHORT)) for example in examples_of(verb)]
        run_steps([("run", example) for example in examples if not runs_elsewhere(example)], folder)


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
    elif what == "others":
        others()
    else:
        quickstart()

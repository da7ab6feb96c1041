#!/usr/bin/env python3
"""What leaves libcohort is what the headers say, and nothing of benchmarks or tests is in it.

    exported_symbols.py LIBRARY PROGRAM BENCHMARKS SOURCE_FOLDER PUBLIC_HEADER...

PROGRAM and BENCHMARKS are the programs cohort and cohort-bench, the public headers those that cohort/cohort.h includes. Marks are those of cohort/base/export.h.
"""
import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r"^(?:class|struct) (COHORT_(?:PROGRAM_)?API) (\w+)|^(COHORT_(?:PROGRAM_)?API) .*?[ &*](operator<<|\w+)\(")
PLAIN = re.compile(r"^(?!inline|template|constexpr|using|static|return|typedef|#)[A-Za-z_:][\w:<>&*, ]*[ &*]([a-z]\w*)\(")
NOT_OF_THE_LIBRARY = ("bench/", "tests/")


def symbols(file, *options):
    lines = subprocess.run(["nm", "--demangle", *options, file], check=True, capture_output=True, text=True).stdout.splitlines()
    return [match.groups() for match in (re.match(r"[0-9a-f ]* ([A-Za-z]) (.*)", line) for line in lines) if match]


def thing(symbol):
    """The function or class of namespace cohort that a symbol belongs to; of another namespace inside of it with that in front."""
    name = re.sub(r"^(?:vtable for|typeinfo for|typeinfo name for|guard variable for|VTT for) ", "", symbol)
    match = re.match(r"(?:non-virtual thunk to )?cohort::((?:study::|report::|detail::)?(?:operator<<|\w+))", name)
    return match.group(1) if match else None


def marks(source, headers):
    """{"COHORT_API": {name: header}, "COHORT_PROGRAM_API": ...}, and the free functions without a mark."""
    marked, bare = {"COHORT_API": {}, "COHORT_PROGRAM_API": {}}, {}
    for header in headers:
        namespace = ""
        for line in (source / header).read_text().splitlines():
            if match := re.match(r"namespace cohort::(\w+)", line):
                namespace = match.group(1) + "::"
            elif line == "namespace cohort {":
                namespace = ""
            elif match := DECLARED.match(line):
                marked[match[1] or match[3]][namespace + (match[2] or match[4])] = header
            elif (match := PLAIN.match(line)) and not line.endswith("{"):
                bare[namespace + match[1]] = header
    return marked, bare


def main():
    library, programs, source, public = sys.argv[1], sys.argv[2:4], pathlib.Path(sys.argv[4]), sys.argv[5:]
    headers = sorted(str(path.relative_to(source)) for folder in ("cohort", "bench/program", "tests/support") for path in (source / folder).rglob("*.h"))
    problems = []

    marked, _ = marks(source, headers)
    _, bare = marks(source, public)
    for name, header in bare.items():
        problems.append(f"{header}: {name}() is in a public header and lacks COHORT_API")
    for name, header in marked["COHORT_API"].items():
        if header not in public:
            problems.append(f"{header}: {name} says COHORT_API, and cohort/cohort.h does not include it")

    exported = {}
    for kind, symbol in symbols(library, "--dynamic", "--defined-only"):
        if kind != "W" and (name := thing(symbol)):
            exported.setdefault(name, symbol)
    known = {name.split("::")[-1] if name.startswith("detail::") else name for name in [*marked["COHORT_API"], *marked["COHORT_PROGRAM_API"]]}
    for name, symbol in exported.items():
        if name not in known:
            problems.append(f"{symbol} leaves the library, and no header marks {name}")
    for name, header in {**marked["COHORT_API"], **marked["COHORT_PROGRAM_API"]}.items():
        if name not in exported:
            problems.append(f"{header}: {name} is marked, and nothing of it leaves the library")

    used = {thing(symbol) for program in programs for _, symbol in symbols(program, "--undefined-only")}
    for name, header in marked["COHORT_PROGRAM_API"].items():
        if name not in used:
            problems.append(f"{header}: {name} says COHORT_PROGRAM_API, and neither program uses it")

    foreign = [header for header in headers if header.startswith(NOT_OF_THE_LIBRARY)]
    of_others, bare_of_others = marks(source, foreign)
    inside = {thing(symbol) for kind, symbol in symbols(library, "--defined-only") if kind in "tT"}
    for name, header in bare_of_others.items():
        if name in inside:
            problems.append(f"{header}: {name}() is in the library")
    if any("doctest::" in symbol for _, symbol in symbols(library, "--defined-only")):
        problems.append("doctest is in the library")

    for problem in problems:
        print(problem)
    print(f"{len(exported)} functions and classes leave the library, {len(marked['COHORT_PROGRAM_API'])} of them for the programs alone")
    sys.exit(1 if problems else 0)


main()

#!/usr/bin/env python3
"""Wraps the prose of Markdown files at 120 columns, where people read it: paragraphs, items of lists, quotations.

    wrap_prose.py FILE...            rewrites those that need it
    wrap_prose.py --check FILE...    names them, exit code 1

A paragraph without a longer line stays as it was written. Tables, code, headings, comments and HTML are left alone; links and `code` are not broken.
"""
import pathlib
import re
import sys

WIDTH = 120
FENCE = re.compile(r"\s*```")
NO_PROSE = re.compile(r"\s*$|\s*[|<]|#|    |\[[^\]]*\](?!\()")
MARK = re.compile(r"(\s*)((?:[-*+]|\d+\.)\s+|> )?")
NEXT_BLOCK = re.compile(r"\s*(?:$|```|[-*+] |\d+\. |[|#<])")
UNBROKEN = re.compile(r"[\d.,]+ %|`[^`]*`|\[[^\]]*\]\([^)]*\)")
STARTS_A_BLOCK = re.compile(r"(?:[-+*#>|]|\d+[.)])$")


def wrapped(text, first, rest):
    """The words of `text` in lines, the first behind `first`, the others behind `rest`."""
    words = UNBROKEN.sub(lambda match: match[0].replace(" ", "\0"), text).split()
    lines = [first + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > WIDTH and not STARTS_A_BLOCK.match(word):
            lines.append(rest + word)
        else:
            lines[-1] += " " + word
    return [line.replace("\0", " ") for line in lines]


def end_of_paragraph(lines, begin, quotation):
    end = begin + 1
    while end < len(lines):
        line = lines[end]
        if quotation != line.lstrip().startswith(">") or NEXT_BLOCK.match(line.lstrip("> ") if quotation else line):
            break
        end += 1
    return end


def paragraph(lines):
    """Its lines, wrapped where one is too long. Two blanks or a backslash at a line's end are a break that somebody meant."""
    if all(len(line) <= WIDTH for line in lines) or any(line.endswith(("  ", "\\")) for line in lines):
        return lines
    indent, mark = MARK.match(lines[0]).groups(default="")
    rest = indent + ("> " if mark == "> " else " " * len(mark))
    text = " ".join([lines[0][len(indent + mark):], *(line.strip().removeprefix("> ") if mark == "> " else line.strip() for line in lines[1:])])
    return wrapped(text, indent + mark, rest)


def wrap(text):
    lines, result, at, is_code = text.split("\n"), [], 0, False
    while at < len(lines):
        end = at + 1
        if FENCE.match(lines[at]):
            is_code = not is_code
            result.append(lines[at])
        elif is_code or NO_PROSE.match(lines[at]):
            result.append(lines[at])
        else:
            end = end_of_paragraph(lines, at, lines[at].lstrip().startswith("> "))
            result += paragraph(lines[at:end])
        at = end
    return "\n".join(result)


def main():
    check, files = sys.argv[1:2] == ["--check"], [name for name in sys.argv[1:] if name != "--check"]
    found = 0
    for name in files:
        before = pathlib.Path(name).read_text()
        after = wrap(before)
        if after == before:
            continue
        found += 1
        if check:
            line = next(number for number, (old, new) in enumerate(zip(before.split("\n"), after.split("\n")), 1) if old != new)
            print(f"{name}:{line}: prose is wider than {WIDTH} columns; scripts/format wraps it")
        else:
            pathlib.Path(name).write_text(after)
    sys.exit(1 if check and found else 0)


main()

"""The recorded studies of studies/evidence: every file of raw data has its specification, is in the archive's layout and fits; bench/evidence.py makes table and pictures of them."""
import os
import pathlib
import subprocess
import sys
import tomllib

from support import COHORT, Folder, check, main

ROOT = pathlib.Path(__file__).resolve().parents[2]
RAW = sorted((ROOT / "studies/evidence/raw").glob("*.tar.xz"))


def evidence(*words):
    done = subprocess.run([sys.executable, ROOT / "bench/evidence.py", *map(str, words)], capture_output=True, text=True, env=dict(os.environ, COHORT_BIN=str(COHORT)), timeout=300)
    check(done.returncode == 0, done.stderr)
    return done.stdout


def test_each_has_its_specification_and_a_row():
    names = {path.name.removesuffix(".tar.xz") for path in RAW}
    check(names == {path.stem for path in (ROOT / "studies/evidence").glob("*.toml")}, f"{names}")
    check(sum(path.stat().st_size for path in RAW) <= 10_000_000, "the raw data are to stay below 10 MB")
    rows = {cells[0]: cells for cells in ([cell.strip() for cell in line.strip("| \n").split("|")] for line in evidence().splitlines()[2:])}
    check(rows.keys() == names, f"{rows.keys()} {names}")
    for name, row in rows.items():
        spec = tomllib.loads((ROOT / f"studies/evidence/{name}.toml").read_text())["study"]
        check(row[1] == spec["goals"][0] and f"at {spec['batch_sizes'][0]}," in row[2] and all(row[4:7]), f"{row}")


def test_the_largest_batch_needs_fewer_steps_than_the_smallest_and_pictures_are_drawn():
    with Folder() as folder:
        evidence("--pictures", folder, *(path for path in RAW if path.name.startswith("fc-sgd.") or "width" in path.name))
        drawn = {path.name: path.read_text() for path in folder.glob("*.svg")}
        check(drawn.keys() == {"steps_fc.svg", "rate_fc.svg", "front.svg", "width.svg"}, f"{drawn.keys()}")
        check(all(text.startswith("<svg") and text.rstrip().endswith("</svg>") and "nan" not in text and "<circle" in text for text in drawn.values()), f"{drawn}")
        check(drawn["width.svg"].count("<polyline") == 4, drawn["width.svg"])


if __name__ == "__main__":
    main(globals())

"""Every file of studies/ parses and starts on stand-in data of its shape: the program builds its model and measures steps."""
import pathlib
import re

from support import Folder, check, main, run, run_ok

STUDIES = pathlib.Path(__file__).resolve().parents[2] / "studies"
TEXT_MODELS = ("lstm", "transformer")


def smaller(text):
    """The same study with less to compute: large pictures get 64 x 64 pixels, text samples 8 bytes, the first batch size is at most 4. The layers stay."""
    text = re.sub(r"(?m)^context = \d+", "context = 8", text.replace("3x224x224", "3x64x64"))
    return re.sub(r"(?m)^batch_sizes = \[(\d+)", lambda found: f"batch_sizes = [{min(4, int(found.group(1)))}", text)


def starts(path, folder):
    copy = folder / path.name
    copy.write_text(smaller(path.read_text()))
    smallest = re.search(r"batch_sizes = \[(\d+)", copy.read_text()).group(1)
    lines = run_ok(["study", "run", copy, "--dry-run", "--synthetic", "--batch-sizes", smallest, "--steps", "1", "--trials", "1", "--workers", "1", "--json"], timeout=300)
    check(lines, f"{path}: --dry-run says nothing")
    check(not (folder / "study.db").exists(), f"{path}: --dry-run wrote a study")


def all_start(paths, count):
    paths = sorted(paths)
    check(len(paths) == count, f"{len(paths)} files, expected {count}")
    with Folder() as folder:
        for path in paths:
            starts(path, folder)


def paper(kind):
    """The files of one kind: mnist, small pictures, large pictures (ImageNet, Open Images) or text."""
    def kind_of(path):
        if any(model in path.name for model in TEXT_MODELS):
            return "text"
        return "mnist" if path.name.startswith("mnist") else "large" if path.name.startswith(("imagenet", "open_images")) else "small"
    return [path for path in (STUDIES / "paper").glob("*.toml") if kind_of(path) == kind]


def test_quick_demos_and_evidence_start():
    recorded = list((STUDIES / "evidence/raw").glob("*.tar.xz"))
    all_start([*STUDIES.glob("quick*.toml"), *(STUDIES / "demo").glob("*.toml"), *(STUDIES / "evidence").glob("*.toml")], 21 + len(recorded))


def test_paper_mnist_starts():
    all_start(paper("mnist"), 18)


def test_paper_small_pictures_start():
    all_start(paper("small"), 4)


def test_paper_large_pictures_start():
    all_start(paper("large"), 5)


def test_paper_text_starts():
    all_start(paper("text"), 8)


def test_noisy_quadratic_needs_the_steps_that_are_known():
    exact = {"sgd": {64: 3311, 1024: 695}, "momentum": {64: 3092, 1024: 193}, "nesterov": {64: 2879, 1024: 147}}  # docs/algorithms/noisy_quadratic.md
    with Folder() as folder:
        for optimizer, known in exact.items():
            lines = run_ok(["study", "run", STUDIES / "noisy_quadratic" / f"{optimizer}.toml", "--out", folder / optimizer, "--batch-sizes", "64,1024", "--workers", 1, "--json"])
            steps = {line["batch_size"]: line["steps"] for line in lines if line["event"] == "steps_to_result"}
            check(all(known[batch] <= steps[batch] <= 1.06 * known[batch] for batch in known), f"{optimizer}: {steps}, known {known}")


def test_a_wrong_spec_is_one_line():
    with Folder() as folder:
        spec = folder / "wrong.toml"
        spec.write_text((STUDIES / "quick.toml").read_text().replace("trials = ", "trial = "))
        code, out, err = run(["study", "run", spec, "--dry-run"])
        line = spec.read_text().split("trial = ")[0].count("\n") + 1
        check(code == 2 and not out, (code, out, err))
        check(f"wrong.toml:{line}: [study] unknown key trial (did you mean 'trials'?)" in err and err.strip().count("\n") == 0, err)


if __name__ == "__main__":
    main(globals())

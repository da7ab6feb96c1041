"""cohort vocabulary and text in pieces of words: learnt the same everywhere, trained the same under every layout, written and asked in words; every bad input is one line."""
import json

from support import Folder, check, main, run, run_ok
from test_use_model import refused

MODEL = ["--model", "transformer:width=16,layers=1,heads=2", "--context", "12", "--global-batch", "8", "--threads", "1"]
WORDS = "the cat sat on a mat and the dog saw that cat near the hat of a man who ran to the van; "


def learnt(folder, size=300):
    text = folder / "text"
    text.mkdir(exist_ok=True)
    (text / "a.txt").write_text(WORDS * 40)
    (text / "b.txt").write_text("\n".join(f"line {i} of the text, na\u00efve and plain" for i in range(200)))
    run_ok(["vocabulary", text, "--size", size, "--out", folder / "v"])
    return f"text:{text},vocabulary={folder / 'v'}"


def test_a_model_of_pieces_is_trained_on_every_layout_and_asked_in_words():
    with Folder() as folder:
        data = learnt(folder)
        check(len((folder / "v").read_text().splitlines()) == 45, "300 pieces are 44 merges")
        again = run_ok(["vocabulary", folder / "text", "--size", "300", "--out", folder / "w", "--json"])[-1]
        check((folder / "v").read_text() == (folder / "w").read_text() and again["size"] == 300 and again["pieces"] < again["bytes"] / 2, again)
        run_ok(["verify", *MODEL, "--data", data, "--layout", "dp=2", "--layout", "pp=2,microbatches=2", "--layout", "zero=3,dp=2", "--layout", "tp=2", "--steps", "2"])
        run_ok(["train", *MODEL, "--data", data, "--workers", "2", "--steps", "60", "--optimizer", "adamw", "--lr", "0.02", "--run", folder / "run", "--sample-bytes", "30"])
        kept = json.loads((folder / "run/data.json").read_text())
        check(len(kept["vocabulary"]) == 44 and kept["outputs"] == 300, kept.keys())
        told = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        check(len(next(line for line in told if line["event"] == "sample")["text"].encode()) == 30, "the run's sample has other than 30 bytes")
        (folder / "v").unlink()  # The run knows its pieces.
        sample = run_ok(["sample", folder / "run", "--prompt", "the cat", "--bytes", "40", "--temperature", "0", "--json"])[-1]
        check(len(sample["text"].encode()) == 40 and " the" in sample["text"], sample)
        predicted = run_ok(["predict", folder / "run", "the cat sat on", "line 7 of", "--top", "3", "--json"])
        check(all(len(line["classes"]) == 3 for line in predicted) and any(len(line["class"]) > 1 for line in predicted), predicted)


def test_what_is_no_text_and_no_vocabulary_is_refused():
    with Folder() as folder:
        data = learnt(folder)
        refused(["vocabulary", folder / "text", "--size", "300"], "--out FILE is missing")
        refused(["vocabulary", folder / "none", "--out", folder / "x"], "no file or folder")
        refused(["vocabulary", folder / "text", "--size", "100", "--out", folder / "x"], "--size 100")
        refused(["vocabulary", folder / "text", "--out", folder / "text/a.txt"], "a.txt")
        refused(["vocabulary", "--out", folder / "x"], "takes one text")
        (folder / "link").symlink_to(folder / "text")
        for inside in (folder / "text/inside", folder / "text/../text/inside", folder / "link/inside"):
            refused(["vocabulary", folder / "text", "--size", "300", "--out", inside], "lies in", "the folder of the text")
        run_ok(["vocabulary", folder / "text", "--size", "300", "--out", folder / "text2"])  # The folder's name is only its beginning.
        check(sorted(each.name for each in (folder / "text").iterdir()) == ["a.txt", "b.txt"], "a refused vocabulary wrote")
        for words, told in (("", "holds no text"), ("a", "has 1 byte of text"), ("abcdef", "no two neighbours are met twice")):
            (folder / "little").write_text(words)
            refused(["vocabulary", folder / "little", "--out", folder / "x"], told, "nothing to learn")
        refused(["vocabulary", "/proc/self/maps", "--out", folder / "x"], "/proc/self/maps says that it has 0 bytes, and has more")
        check((folder / "text/a.txt").read_text() == WORDS * 40 and not (folder / "x").exists(), "a refused vocabulary wrote")
        base = ["train", *MODEL, "--steps", "1", "--run", folder / "run", "--data"]
        refused([*base, f"text:{folder / 'text'},vocabulary={folder / 'text/a.txt'}"], "a.txt:1: expected \"cohort vocabulary 1: N pieces\"")
        refused([*base, f"text:{folder / 'text'},vocabulary="], "expected text:FILE-OR-DIR,vocabulary=FILE")
        (folder / "cut").write_text("\n".join((folder / "v").read_text().splitlines()[:-1]))
        refused([*base, f"text:{folder / 'text'},vocabulary={folder / 'cut'}"], "it may have been cut")
        run_ok([*base, data])
        lines = (folder / "v").read_text().splitlines()
        lines[-1] = "122 122"  # As many pieces, and another last one.
        (folder / "v").write_text("\n".join(lines) + "\n")
        code, _, err = run(["evaluate", folder / "run"])
        check(code == 2 and "another vocabulary than the training" in err, (code, err))


def test_a_run_whose_vocabulary_was_moved_goes_on_with_its_new_place():
    with Folder() as folder:
        data, kept = learnt(folder), folder / "run"
        run_ok(["train", *MODEL, "--data", data, "--steps", "20", "--run", kept])
        page = (kept / "report.html").read_text()
        check("bits per piece" in page and "Next piece right" in page and "bits per byte" not in page, "the report speaks of bytes")
        before = run_ok(["evaluate", kept, "--json"])[-1]
        (folder / "v").rename(folder / "moved")
        moved = f"text:{folder / 'text'},vocabulary={folder / 'moved'}"
        told = ("no vocabulary", f"where it was moved, --data text:{folder / 'text'},vocabulary=FILE says where it is")
        refused(["evaluate", kept], *told)
        refused(["train", "--run", kept, "--resume", "--steps", "22"], *told)
        after = run_ok(["evaluate", kept, "--data", moved, "--json"])[-1]
        check(after["loss"] == before["loss"] and after["samples"] == before["samples"], (before, after))
        done = run_ok(["train", "--run", kept, "--resume", "--steps", "22", "--data", moved, "--json"])[-1]
        check(done["step"] == 22, done)


if __name__ == "__main__":
    main(globals())

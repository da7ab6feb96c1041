"""Data of one's own, from files and from code: tables, class folders of pictures, arrays; the same training whatever the layout; what is wrong with them."""
import array
import json
import pathlib
import random
import struct
import zlib

from support import Folder, check, main, run, run_ok


def write_png(path, width, height, channels, pixel):
    """An 8-bit PNG, grey or RGB; pixel(x, y, c) gives a value."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(pixel(x, y, c) & 255 for x in range(width) for c in range(channels)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_folder(folder, each=40, sides=(12, 10)):
    """Class across is bright in its upper half, class down in its left one; pictures of two sizes."""
    noise = random.Random(3)
    for i in range(each):
        side = sides[i % len(sides)]
        write_png(folder / "across" / f"{i}.png", side, side, 3, lambda x, y, c: noise.randrange(80) + (150 if 2 * y < side else 0))
        write_png(folder / "down" / f"{i}.png", side, side, 3, lambda x, y, c: noise.randrange(80) + (150 if 2 * x < side else 0))
    return folder


def write_houses(path, rows=200):
    """price = 3 area + 20 where the town is b, with noise."""
    noise = random.Random(1)
    lines = ["id,area,town,price"]
    for i in range(rows):
        area, town = noise.uniform(20, 200), noise.choice("abc")
        lines.append(f'{i},{area:.3f},"{town}",{3 * area + (20 if town == "b" else 0) + noise.gauss(0, 5):.3f}')
    path.write_text("\n".join(lines) + "\n")
    return path


def write_npy(path, kind, shape, numbers):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + numbers.tobytes())


def bitwise(arguments, layouts):
    lines = [line for line in run_ok(["verify", *arguments, "--layouts", ";".join(layouts), "--steps", "3", "--json"], timeout=300) if line["event"] == "verify"]
    check(len(lines) == len(layouts), lines)
    for layout, line in zip(layouts, lines):
        check(line["verdict"] == "same" and line["strict"] == "bitwise", f"{arguments} {layout}: {line}")


def refused(arguments, *parts):
    code, out, err = run(["train", *arguments, "--steps", "1"])
    check(code == 2 and len(err.strip().splitlines()) == 1 and all(part in err for part in parts), f"{arguments}: exit code {code}\n{out}{err}")


def test_a_regression_learns_and_says_what_its_error_is():
    with Folder() as folder:
        data = f"csv:{write_houses(folder / 'h.csv')},target=price,task=regression,drop=id"
        base = ["--model", "fc:hidden=16", "--data", data, "--global-batch", "20", "--lr", "0.05", "--run", folder / "run"]
        lines = run_ok(["train", *base, "--epochs", "30", "--json"])
        start, done = lines[0], lines[-1]
        check(start["loss"] == "mse" and start["train_samples"] == 180, start)
        check(done["val_error"] < 0.15 and abs(done["val_error"] ** 2 - done["val_loss"]) < 1e-6, done)
        kept = json.loads((folder / "run" / "data.json").read_text())
        check(kept["task"] == "regression" and [column["name"] for column in kept["columns"]] == ["area", "town"], kept)
        check("of a deviation" in run_ok(["report", folder / "run"]) or "deviation" in (folder / "run" / "report.html").read_text(), "the report has no error")
        refused([*base[:-2], "--label-smoothing", "0.1"], "trains on the loss mse")
        refused([*base[:-2], "--image-size", "8"], "for pictures of files")


def test_tables_pictures_and_arrays_train_the_same_under_every_layout():
    with Folder() as folder:
        table = ["--data", f"csv:{write_houses(folder / 'h.csv')},target=price,task=regression,drop=id", "--global-batch", "24", "--lr", "0.05"]
        bitwise(["--model", "fc:hidden=16,layers=2", *table], ["dp=2", "dp=2,zero=2", "pp=2,microbatches=2", "tp=2", "dp=2,pp=2,microbatches=2"])
        towns = ["--data", f"csv:{folder / 'h.csv'},target=town,drop=id", "--global-batch", "24", "--lr", "0.05"]
        bitwise(["--model", "fc:hidden=16", *towns], ["dp=2", "pp=2,microbatches=2"])
        pictures = ["--data", f"folder:{write_folder(folder / 'p')},memory=0", "--image-size", "8", "--global-batch", "12", "--lr", "0.05"]
        bitwise(["--model", "cnn:width=0.25", *pictures], ["dp=2", "pp=2,microbatches=2"])
        noise = random.Random(2)
        x = array.array("f", [noise.gauss(0, 1) for _ in range(60 * 3)])
        write_npy(folder / "n" / "x.npy", "<f4", (60, 3), x)
        write_npy(folder / "n" / "y.npy", "<f4", (60, 2), array.array("f", [x[3 * i] * k for i in range(60) for k in (1, -2)]))
        bitwise(["--model", "fc:hidden=8", "--data", f"npy:{folder / 'n'}", "--global-batch", "12"], ["dp=2", "pp=2,microbatches=2"])


def test_pictures_learn_and_a_run_goes_on_with_the_mean_that_it_began_with():
    with Folder() as folder:
        base = ["--model", "fc:hidden=16", "--data", f"folder:{write_folder(folder / 'p')},memory=0", "--image-size", "8", "--global-batch", "12", "--lr", "0.05"]
        straight = run_ok(["train", *base, "--steps", "40", "--workers", "2", "--run", folder / "straight", "--json"])[-1]
        check(straight["val_error"] == 0, straight)
        run_ok(["train", *base, "--steps", "20", "--run", folder / "run"])
        resumed = run_ok(["train", "--run", folder / "run", "--resume", "--steps", "40", "--workers", "2", "--json"])[-1]
        check(resumed["loss"] == straight["loss"], f"{resumed} {straight}")
        # What is kept counts: with another mean it is other data, and the run does not go on.
        kept = json.loads((folder / "run" / "data.json").read_text())
        kept["mean"] = [value + 0.1 for value in kept["mean"]]
        (folder / "run" / "data.json").write_text(json.dumps(kept))
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", "41"])
        check(code == 2 and "data" in err, f"exit code {code}: {err}")
        (folder / "run" / "data.json").write_text("{}")
        code, _, err = run(["train", "--run", folder / "run", "--resume", "--steps", "41"])
        check(code == 2 and 'data.json: "input" is missing' in err, f"exit code {code}: {err}")


def test_a_trained_model_meets_new_data():
    with Folder() as folder:
        houses = write_houses(folder / "houses.csv")
        how = f"csv:{houses},target=town,drop=id"
        run_ok(["train", "--model", "fc:hidden=8", "--data", how, "--steps", 20, "--global-batch", 16, "--val-samples", 40, "--run", folder / "run", "--quiet"])
        rows = houses.read_text().splitlines()
        (folder / "only_a.csv").write_text("price,town,area\n" + "".join(f"{row.split(',')[3]},a,{row.split(',')[1]}\n" for row in rows[1:30]))
        found = run_ok(["evaluate", folder / "run", "--data", f"csv:{folder}/only_a.csv,target=town", "--split", "all", "--json"])[-1]
        check(found["samples"] == 29 and 0 <= found["error"] <= 1, found)
        # More validation samples than the run kept are those that it was trained on.
        code, _, err = run(["evaluate", folder / "run", "--val-samples", 60])
        check(code == 2 and "the run kept 40" in err, err)
        check(run_ok(["evaluate", folder / "run", "--val-samples", 40, "--json"])[-1]["samples"] == 40, "as many")
        pictures = write_folder(folder / "pictures", each=12)
        run_ok(["train", "--model", "fc:hidden=8", "--data", f"folder:{pictures}", "--image-size", 8, "--steps", 5, "--global-batch", 8, "--run", folder / "seen", "--quiet"])
        few = write_folder(folder / "few", each=6)
        for path in (few / "across").iterdir():
            path.unlink()
        (few / "across").rmdir()
        (few / "down" / "0.png").write_bytes(b"no picture")
        words = ["evaluate", folder / "seen", "--data", f"folder:{few}", "--split", "all"]
        code, _, err = run(words)
        check(code == 2 and "down/0.png" in err and "--skip-bad" in err, err)
        code, out, err = run([*words, "--skip-bad", "--json"])
        check(code == 0 and json.loads(out.splitlines()[-1])["samples"] == 5 and "1 sample of" in err, (out, err))
        # Nothing of somebody else's is written over.
        (folder / "mine").mkdir()
        (folder / "mine" / "config.toml").write_text("my own")
        refused(["--model", "fc:hidden=8", "--data", how, "--run", folder / "mine"], "holds no run but other files (config.toml)")
        check([path.name for path in (folder / "mine").iterdir()] == ["config.toml"], "nothing is added")
        code, _, err = run(["checkpoint", "export", folder / "run", "--out", folder / "m.safetensors"])
        check(code == 0, err)
        (folder / "m.safetensors").write_text("some text of mine")
        for words in (["checkpoint", "export", folder / "run"], ["compress", "quantize", folder / "run"]):
            code, _, err = run([*words, "--out", folder / "m.safetensors"])
            check(code == 2 and "is not a safetensors file" in err, (words, err))
        for name, hint in (("houses.csv", "csv:"), ("pictures", "folder:")):
            refused(["--model", "fc", "--data", folder / name], "give " + hint)


def test_bad_pictures_and_rows_are_refused_by_name_or_left_out_and_counted():
    with Folder() as folder:
        pictures = write_folder(folder / "p", 12)
        whole = (pictures / "across" / "3.png").read_bytes()
        (pictures / "across" / "3.png").write_bytes(whole[:100])
        base = ["--model", "fc:hidden=8", "--global-batch", "8", "--quiet"]
        data = ["--data", f"folder:{pictures}", "--image-size", "8"]
        refused([*base, *data], str(pictures / "across" / "3.png"), "cannot be decoded")
        run_folder = folder / "run"
        code, _, err = run(["train", *base, *data, "--skip-bad", "--workers", "2", "--steps", "2", "--run", run_folder])
        check(code == 0 and err.count("1 picture or row was left out (--skip-bad): ") == 1 and "3.png" in err, f"exit code {code}: {err}")
        start = json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[0])
        check(start["skipped_samples"] == 1 and "3.png" in start["skipped"][0] and start["train_samples"] + start["val_samples"] == 23, start)
        table = folder / "t.csv"
        table.write_text("a,y\n1,p\nx,q\n3,p\n4,q\n5,p\n")
        refused([*base, "--data", f"csv:{table},target=y"], f"{table}:3: a is 'x', expected a number")
        refused([*base, "--data", "fashion-mnist", "--skip-bad"], "--skip-bad would do nothing here")


if __name__ == "__main__":
    main(globals())

#!/usr/bin/env python3
"""Pictures a second that are decoded and made ready for a model, beside torchvision's ImageFolder in PyTorch's DataLoader.

    bench/read_pictures.py [--pictures 600] [--side 320x240] [--size 112] [--threads 1,2] [--rounds 3] [--json]

JPEG files of noise over gradients (about as large as photographs of that size) are made in a temporary folder, with Pillow. `cohort` trains one linear layer on them with `folder:DIR,memory=0`, on as many cores as `--threads` says: each picture
is read, decoded, resized and normalised each time, and the step itself is next to nothing; samples over the time of the steps. `torchvision` is ImageFolder with Resize((N, N)), ToTensor and Normalize in a DataLoader with as many worker
processes, whose batches are only looked at; `pillow` the same without torchvision: Image.open, resize, to a tensor. The two resize otherwise than we do: bilinear with a filter as wide as the reduction, which is a triangle where ours is a box.
Systems alternate within a round; the line of each is the median over the rounds. Files are read once before (they are in the system's cache). Needs a built tree, and Pillow in the Python that runs this; where torchvision cannot be imported, it says so.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COHORT = os.environ.get("COHORT_BIN", str(ROOT / "build/release/bin/cohort"))
BATCH = 32


def write_pictures(folder, count, width, height):
    import numpy
    from PIL import Image
    noise = numpy.random.default_rng(1)
    y, x = numpy.mgrid[0:height, 0:width]
    for i in range(count):
        place = folder / ("even" if i % 2 == 0 else "odd")
        place.mkdir(exist_ok=True)
        waves = numpy.stack([128 + 60 * numpy.sin(x / noise.uniform(5, 60) + c) + 40 * numpy.cos(y / noise.uniform(5, 60)) for c in range(3)], axis=-1)
        Image.fromarray(numpy.clip(waves + noise.normal(0, 8, waves.shape), 0, 255).astype(numpy.uint8)).save(place / f"{i}.jpg", quality=90)


def on_cores(count):
    return {"preexec_fn": lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])}


def cohort(folder, size, threads, count):
    with tempfile.TemporaryDirectory() as run:
        steps = 3 * count // BATCH
        command = [COHORT, "train", "--model", "fc:layers=0", "--data", f"folder:{folder},memory=0", "--image-size", size, "--global-batch", BATCH, "--steps", steps, "--lr", "0.0001", "--eval-every", steps,
                   "--checkpoint-every", "end", "--threads", 1, "--val-samples", 2, "--run", f"{run}/r", "--json"]
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **on_cores(threads))
        if result.returncode != 0:
            sys.exit(result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        seconds = [line["step_seconds"] for line in lines if line["event"] == "step"][5:]  # What was read ahead of the first is not in their time.
        return BATCH * len(seconds) / sum(seconds)


def torchvision_is_there():
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # The latter where it was built for another LibTorch.
        return False
    return True


class Files:
    """What ImageFolder does, by Pillow alone."""

    def __init__(self, folder, size):
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        import numpy
        import torch
        from PIL import Image
        with Image.open(self.files[index]) as picture:
            small = picture.convert("RGB").resize((self.size, self.size), Image.BILINEAR)
        return (torch.from_numpy(numpy.asarray(small).transpose(2, 0, 1).copy()).float() / 255 - 0.5) / 0.25, int(self.files[index].parent.name == "odd")


def python(folder, size, threads, count, with_torchvision):
    """In a process of its own, so that the cores are those of `threads`."""
    result = subprocess.run([sys.executable, __file__, "--inside", "torchvision" if with_torchvision else "pillow", str(folder), str(size), str(threads)], capture_output=True, text=True, **on_cores(threads))
    if result.returncode != 0:
        sys.exit(result.stderr)
    return float(result.stdout)


def inside(kind, folder, size, threads):
    import torch
    import torch.utils.data
    torch.set_num_threads(1)
    data = Files(pathlib.Path(folder), size)
    if kind == "torchvision" and torchvision_is_there():
        from torchvision import datasets, transforms
        data = datasets.ImageFolder(folder, transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=threads, persistent_workers=True)
    for _ in loader:  # Workers start.
        pass
    begin = time.monotonic()
    for _ in range(2):
        for images, labels in loader:
            assert images.shape[1:] == (3, size, size)
    print(2 * len(data) / (time.monotonic() - begin))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=600)
    parser.add_argument("--side", default="320x240")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.inside[0], options.inside[1], int(options.inside[2]), int(options.inside[3]))
    width, height = map(int, options.side.split("x"))
    with_torchvision = torchvision_is_there()
    if not with_torchvision:
        print("torchvision cannot be imported here: Pillow alone is measured beside", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_pictures(folder, options.pictures, width, height)
        size_bytes = statistics.mean(path.stat().st_size for path in folder.glob("*/*.jpg"))
        if not options.json:
            print(f"{options.pictures} JPEG files of {width} x {height} pixels, {size_bytes / 1024:.1f} KiB each, to {options.size} x {options.size}; pictures a second, median of {options.rounds} (least to most)")
        for threads in map(int, options.threads.split(",")):
            rates = {"cohort": [], "pillow": []} | ({"torchvision": []} if with_torchvision else {})
            for _ in range(options.rounds):
                rates["cohort"].append(cohort(folder, options.size, threads, options.pictures))
                rates["pillow"].append(python(folder, options.size, threads, options.pictures, False))
                if with_torchvision:
                    rates["torchvision"].append(python(folder, options.size, threads, options.pictures, True))
            for system, values in rates.items():
                line = {"system": system, "threads": threads, "pictures_per_second": statistics.median(values), "least": min(values), "most": max(values)}
                print(json.dumps(line) if options.json else f"{threads} thread{'s' if threads > 1 else ' '}  {system:12} {line['pictures_per_second']:8.0f}  ({min(values):.0f} to {max(values):.0f})", flush=True)


if __name__ == "__main__":
    main()

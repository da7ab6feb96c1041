#!/usr/bin/env python3
"""Draws the pictures of docs/guide/concepts.md into this folder.

    docs/pictures/draw.py            writes them
    docs/pictures/draw.py --check    says which of those that are here are not what would be drawn (exit code 1)

Schedules are drawn by the program itself (`cohort simulate --svg`; COHORT_BIN, or build/release/bin/cohort), the others here."""
import math
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("COHORT_BIN", str(HERE.parents[1] / "build/release/bin/cohort"))
INK, PALE, BLUE, GREEN, ORANGE, VIOLET, GREY = "#222222", "#777777", "#a8c8e8", "#b5dcb0", "#f4c48c", "#d2bfe6", "#ececec"


class Picture:
    """Boxes, lines and words on a white ground; sizes in pixels."""

    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="13" role="img">',
                      f"<title>{title}</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def box(self, x, y, width, height, text="", fill=GREY, size=13, stroke=PALE):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}" rx="3"/>')
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + size * 0.36 + (number - (len(lines) - 1) / 2) * size * 1.2, line, "middle", size)

    def text(self, x, y, text, anchor="start", size=13, fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}" fill="{fill}"{weight}>{text.replace("&", "&amp;").replace("<", "&lt;")}</text>')

    def line(self, points, stroke=INK, width=1.5, dashes="", arrow=False):
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashed}/>')
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
            u, v = (x1 - x0) / length, (y1 - y0) / length
            self.parts.append(f'<polygon points="{x1:g},{y1:g} {x1 - 8 * u - 4 * v:g},{y1 - 8 * v + 4 * u:g} {x1 - 8 * u + 4 * v:g},{y1 - 8 * v - 4 * u:g}" fill="{stroke}"/>')

    def svg(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def batch():
    """The global batch, its shares and their pieces."""
    p = Picture(720, 210, "The global batch, divided")
    p.text(10, 30, "global batch of 12", bold=True)
    for i in range(12):
        p.box(190 + 42 * i, 14, 38, 24, str(i), BLUE if i < 6 else GREEN)
    p.text(10, 90, "shares of 2 ranks", bold=True)
    p.box(190, 72, 248, 30, "rank 0: samples 0 to 5", BLUE)
    p.box(442, 72, 248, 30, "rank 1: samples 6 to 11", GREEN)
    p.text(10, 150, "3 micro-steps each", bold=True)
    for rank, fill in ((0, BLUE), (1, GREEN)):
        for piece in range(3):
            p.box(190 + 252 * rank + 84 * piece, 132, 80, 30, f"{6 * rank + 2 * piece}, {6 * rank + 2 * piece + 1}", fill)
    p.text(190, 190, "--global-batch 12 --workers 2 --accumulate 3: six pieces, one mean, one update", size=12, fill=PALE)
    return p.svg()


def step():
    """One step of data parallelism in time: buckets leave while backward runs."""
    p = Picture(720, 260, "One step on two ranks: buckets leave while backward runs")
    x0 = 110
    for rank in range(2):
        y = 20 + 70 * rank
        p.text(10, y + 20, f"rank {rank}", bold=True)
        p.box(x0, y, 150, 30, "forward", BLUE)
        for bucket, name in enumerate(("layer 3", "layer 2", "layer 1")):
            p.box(x0 + 154 + 84 * bucket, y, 80, 30, name, GREEN)
        p.box(x0 + 466, y, 110, 30, "optimizer", VIOLET)
    p.text(x0 + 154, 66, "backward, last layer first", size=11, fill=PALE)
    p.text(10, 190, "exchange", bold=True)
    for bucket in range(3):
        p.box(x0 + 238 + 84 * bucket, 172, 56, 30, f"bucket {bucket}", ORANGE, 12)
        p.line([(x0 + 236 + 84 * bucket, 120), (x0 + 250 + 84 * bucket, 170)], stroke=PALE, width=1, arrow=True)
    p.line([(x0 + 406, 216), (x0 + 462, 216)], width=2)
    p.line([(x0 + 406, 210), (x0 + 406, 222)], width=2)
    p.line([(x0 + 462, 210), (x0 + 462, 222)], width=2)
    p.text(x0 + 434, 240, "exposed time: nothing left to compute beside it", "middle", 12)
    return p.svg()


def mesh():
    """dp=2,pp=2,tp=2 on eight ranks."""
    p = Picture(720, 290, "Eight ranks as dp=2,pp=2,tp=2")
    for replica in range(2):
        x = 20 + 350 * replica
        p.box(x, 34, 330, 230, "", "#fafafa")
        p.text(x + 165, 24, f"replica {replica}: half of each batch", "middle", bold=True)
        for stage in range(2):
            y = 48 + 108 * stage
            p.box(x + 12, y, 306, 94, "", "#ffffff")
            p.text(x + 24, y + 20, f"stage {stage}: " + ("the first layers" if stage == 0 else "the other layers"), size=12)
            for half in range(2):
                p.box(x + 24 + 144 * half, y + 32, 136, 48, f"rank {4 * replica + 2 * stage + half}\nhalf of each tensor", (BLUE, GREEN)[half], 12)
        p.line([(x + 165, 142), (x + 165, 156)], arrow=True)
    p.text(360, 282, "--layout dp=2,pp=2,tp=2: ranks that divide a tensor are neighbours, replicas are furthest apart", "middle", 12, PALE)
    return p.svg()


def held():
    """What each of four ranks holds."""
    p = Picture(720, 300, "What each of four ranks holds")
    rows = (("dp", (1, 1, 1)), ("zero=1", (1, 1, 4)), ("zero=2", (1, 4, 4)), ("zero=3", (4, 4, 4)), ("pp=4 or tp=4", (4, 4, 4)))
    for fill, name, x in ((BLUE, "weights", 130), (GREEN, "gradients", 230), (VIOLET, "optimizer state (Adam)", 340)):
        p.box(x, 10, 16, 16, "", fill)
        p.text(x + 22, 23, name, size=12)
    for row, (layout, parts) in enumerate(rows):
        y = 42 + 50 * row
        p.text(10, y + 24, layout, bold=True)
        for rank in range(4):
            x = 130 + 146 * rank
            for kind, (fill, whole) in enumerate(((BLUE, 34), (GREEN, 34), (VIOLET, 68))):
                left = x + (0, 34, 68)[kind]
                p.box(left, y, whole, 36, "", "#ffffff", stroke="#cccccc")
                width = whole / parts[kind]
                p.box(left + (rank * width if parts[kind] > 1 else 0), y, width, 36, "", fill)
    for rank in range(4):
        p.text(130 + 146 * rank + 68, 296, f"rank {rank}", "middle", 12, PALE)
    return p.svg()


def one_copy():
    """One copy of the weights on a host."""
    p = Picture(720, 270, "One copy of the weights on a host")
    p.box(10, 10, 700, 250, "", "#fafafa")
    p.text(24, 32, "one host", bold=True)
    for rank in range(3):
        x = 40 + 225 * rank
        p.box(x, 46, 190, 72, f"rank {rank}\nforward and backward\nof its samples", "#ffffff", 12)
        p.box(x, 134, 190, 28, "its gradients", GREEN, 12)
        p.line([(x + 95, 118), (x + 95, 132)], arrow=True)
        p.line([(x + 95, 162), (x + 95, 192)], arrow=True)
        p.box(40 + 213.3 * rank, 194, 213.3, 46, f"rank {rank} sums this part of all\ngradients and applies it", (BLUE, "#bcd6ee", "#d0e2f3")[rank], 12)
    p.text(360, 255, "weights and optimizer state, once, in memory that all ranks share", "middle", 12, PALE)
    return p.svg()


def regimes():
    """Steps to a goal against the batch size."""
    p = Picture(720, 330, "Steps to a goal against the batch size: three regimes")
    left, right, top, bottom = 90, 690, 76, 270
    p.line([(left, top), (left, bottom), (right, bottom)])
    p.text((left + right) / 2, 310, "batch size, each mark twice the last", "middle")
    p.text(18, 20, "steps to the goal (logarithm)", size=13)
    width = (right - left) / 12
    points = []
    for i in range(121):
        batch_size, critical = 2 ** (i / 10), 2 ** 6.5
        steps = 1 + critical / batch_size
        y = bottom - 20 - (math.log2(steps) / math.log2(1 + critical)) * (bottom - top - 40)
        points.append((left + i / 10 * width, y))
    p.line(points, stroke="#2f6fb0", width=3)
    for i in range(13):
        p.line([(left + width * i, bottom), (left + width * i, bottom + 5)], width=1)
    for begin, end, name, why, fill in ((0, 4.5, "perfect scaling", "twice the batch, half the steps", BLUE), (4.5, 8.5, "diminishing returns", "fewer steps are saved", ORANGE),
                                        (8.5, 12, "maximal parallelism", "nothing more is saved", GREY)):
        p.parts.insert(3, f'<rect x="{left + begin * width:g}" y="{top}" width="{(end - begin) * width:g}" height="{bottom - top}" fill="{fill}" opacity="0.35"/>')
        p.text(left + (begin + end) / 2 * width, top - 28, name, "middle", bold=True)
        p.text(left + (begin + end) / 2 * width, top - 10, why, "middle", 12)
    return p.svg()


def schedule(name, *options):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "chart.svg"
        subprocess.run([PROGRAM, "simulate", "--schedule", name, *options, "--svg", file], check=True, capture_output=True)
        return file.read_text()


PICTURES = {"batch": batch, "step": step, "mesh": mesh, "held": held, "one_copy": one_copy, "regimes": regimes,
            "pipeline_1f1b": lambda: schedule("1f1b", "--stages", "4", "--microbatches", "8"),
            "pipeline_zb_v": lambda: schedule("zb-v", "--stages", "4", "--microbatches", "8")}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    others = []
    for name, draw in PICTURES.items():
        file, drawn = HERE / f"{name}.svg", draw()
        if not sys.argv[1:]:
            file.write_text(drawn)
        elif not file.exists() or file.read_text() != drawn:
            others.append(file.name)
    if others:
        sys.exit(f"draw.py: not as they would be drawn: {', '.join(others)}; run docs/pictures/draw.py")


if __name__ == "__main__":
    main()

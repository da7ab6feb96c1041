#!/usr/bin/env python3
"""How often the first exp of a process, on two threads at once, is wrong (docs/lab/first_calls.md).

    bench/first_calls.py [--tries 1500] [--settled]

Each try is a fork of a process that has loaded PyTorch and called nothing: it computes exp of 100,000 numbers twice with two threads, and compares bit by bit.
--settled: each calls exp of a single number first. Beside other work it is seen more often.
"""
import argparse
import os

import torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tries", type=int, default=1500)
parser.add_argument("--settled", action="store_true")
options = parser.parse_args()
reader, writer = os.pipe()
for number in range(options.tries):
    if os.fork() == 0:
        torch.set_num_threads(2)
        values = torch.arange(100000) * 1e-4
        if options.settled:
            torch.ones(1).exp()
        first, second = values.exp(), values.exp()
        if not torch.equal(first, second):
            os.write(writer, f"try {number}: {int((first != second).sum())} differ, by up to {float(((first - second) / second).abs().max()):.1e} of the value\n".encode())
        os._exit(0)
    os.wait()
os.close(writer)
wrong = os.fdopen(reader).read().splitlines()
print(*wrong, f"{len(wrong)} of {options.tries} first calls differ from the second", sep="\n")

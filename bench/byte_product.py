#!/usr/bin/env python3
"""The product that cohort/trials/dense_chain.cpp makes beside that of floats, alone: 5,000 rows, 500 at a time, one thread; four digits of a byte a weight.

    .venv/bin/python bench/byte_product.py            best of 30, in turn: milliseconds, and the rate of the floats

With ONEDNN_MAX_CPU_ISA=AVX2 in the environment: as on a processor without products of bytes.
"""
import time

import torch

ROWS, AT_ONCE, ROUNDS, NUM_DIGITS = 5000, 500, 30, 4
SHAPES = ((64, 64), (196, 32), (196, 128), (784, 10), (784, 64), (784, 1024), (3072, 64))  # Inputs, outputs.


def milliseconds(function):
    begin = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - begin)


def main():
    torch.set_num_threads(1)
    print("inputs outputs  floats, ms  bytes, ms  floats, GFLOP/s")
    for inputs, outputs in SHAPES:
        rows, weight, product = torch.rand(ROWS, inputs).split(AT_ONCE), torch.rand(outputs, inputs).t(), torch.empty(AT_ONCE, outputs)
        byte = lambda *shape: torch.randint(-128, 128, shape, dtype=torch.int8)
        byte_rows, digits, sums = byte(ROWS, inputs).split(AT_ONCE), byte(NUM_DIGITS * outputs, inputs).t(), torch.empty(AT_ONCE, NUM_DIGITS * outputs, dtype=torch.int32)
        times = [(milliseconds(lambda: [torch.mm(row, weight, out=product) for row in rows]), milliseconds(lambda: [torch._int_mm(row, digits, out=sums) for row in byte_rows])) for _ in range(ROUNDS)]
        floats, bytes_ = map(min, zip(*times))
        print(f"{inputs:6} {outputs:7} {floats:11.2f} {bytes_:10.2f} {2e-6 * ROWS * inputs * outputs / floats:16.0f}")


if __name__ == "__main__":
    main()

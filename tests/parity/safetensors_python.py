#!/usr/bin/env python3
"""Reads a safetensors file with Python's own package, or makes one for our reader.

  safetensors_python.py FILE...      one JSON line a tensor (name, dtype, shape, sum) and one a file (metadata, number of tensors)
  safetensors_python.py --make FILE  writes a file with every dtype that both sides know
  safetensors_python.py --same A B   the two files hold the same names, dtypes, shapes and bits, or exit 1

Needs the packages torch and safetensors; exit code 77 ("skipped") without them.
"""

import json
import sys

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)


def load(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def show(path):
    tensors, metadata = load(path)
    for name, tensor in sorted(tensors.items()):
        total = tensor.to(torch.float64).sum().item()
        print(json.dumps({"name": name, "dtype": str(tensor.dtype), "shape": list(tensor.shape), "sum": total}))
    print(json.dumps({"file": path, "tensors": len(tensors), "metadata": metadata}))


def make(path):
    numbers = torch.arange(6).reshape(2, 3)
    types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {str(dtype).removeprefix("torch."): numbers.to(dtype) for dtype in types}
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 4)
    save_file(tensors, path, metadata={"format": "pt"})


def same(path_a, path_b):
    tensors_a, tensors_b = load(path_a)[0], load(path_b)[0]
    wrong = sorted(tensors_a.keys() ^ tensors_b.keys())
    for name in sorted(tensors_a.keys() & tensors_b.keys()):
        a, b = tensors_a[name], tensors_b[name]
        bits = lambda tensor: tensor.contiguous().reshape(-1).view(torch.uint8)
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(bits(a), bits(b)):
            wrong.append(name)
    for name in wrong:
        print(f"differs: {name}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--make":
        make(arguments[1])
    elif len(arguments) == 3 and arguments[0] == "--same":
        return same(arguments[1], arguments[2])
    elif arguments and not arguments[0].startswith("-"):
        for path in arguments:
            show(path)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Compiles what is guarded by COHORT_HAS_NCCL against CUDA's and NCCL's headers: types and names are right, though no GPU has run it.

A build against a CPU LibTorch leaves those lines out, so nothing else would notice when they break. LibTorch's CPU wheel ships the headers of
its CUDA parts; CUDA's own come from CUDA_HOME, /usr/local/cuda or pip's nvidia packages, nccl.h also from NCCL_HOME. Exit code 77 (ctest:
skipped) and a line that says what is missing, where they are not all here.

    compile_cuda.py --compiler CXX --torch FOLDER/torch --include DIR [--include DIR ...]"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUARD = re.compile(r"^#if COHORT_HAS_NCCL|^#define COHORT_HAS_NCCL 1", re.M)
NEEDED = {"cuda_runtime_api.h": "CUDA (CUDA_HOME)", "nccl.h": "NCCL (NCCL_HOME, or pip's nvidia-nccl-cu*)", "cusparse.h": "cuSPARSE",
          "cublas_v2.h": "cuBLAS", "cusolverDn.h": "cuSOLVER", "crt/host_defines.h": "CUDA's compiler (CUDA_HOME)",
          "nv/target": "CUDA's C++ library (CUDA_HOME)"}


def candidates(torch):
    """Folders that may hold headers, the first that has one wins."""
    for name in ("CUDA_HOME", "CUDA_PATH", "NCCL_HOME"):
        if os.environ.get(name):
            yield pathlib.Path(os.environ[name]) / "include"
    yield pathlib.Path("/usr/local/cuda/include")
    yield pathlib.Path("/usr/include")
    sites = {torch.parent, *map(pathlib.Path, filter(None, sys.path))}
    for site in sorted(sites):
        yield from sorted(site.glob("nvidia/*/include"))


def find_headers(torch):
    """{header: folder} of those that are here."""
    found = {}
    for folder in candidates(torch):
        for header in NEEDED:
            if header not in found and (folder / header).is_file():
                found[header] = folder
    return found


def guarded_sources():
    return [file for file in sorted((ROOT / "cohort").rglob("*.cpp")) if GUARD.search(file.read_text())]


def compile_one(compiler, source, includes):
    # Others' headers are system ones: warnings in our lines alone count.
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO",
             "-DUSE_C10D_NCCL", f"-I{ROOT}"]
    for folder in includes:
        flags += ["-isystem", str(folder)]
    # The build has found the headers, and so has the file: else it would compile what a CPU build compiles.
    check = f'#include "{source}"\n#if !COHORT_HAS_NCCL\n#error this file was compiled without NCCL\n#endif\n'
    return subprocess.run([compiler, *flags, "-x", "c++", "-"], input=check, text=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--include", type=pathlib.Path, action="append", default=[])
    options = parser.parse_args()
    sources = guarded_sources()
    if not sources:
        sys.exit("no source has COHORT_HAS_NCCL: this check would check nothing")
    headers = find_headers(options.torch)
    missing = [f"{header} of {where}" for header, where in NEEDED.items() if header not in headers]
    if not (options.torch / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").is_file():
        missing.append("ProcessGroupNCCL.hpp of LibTorch")
    if missing:
        print("skipped: missing", "; ".join(missing))
        sys.exit(77)
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        # LibTorch's CMake writes this one when it is built with CUDA; a CPU wheel lacks it, and its absence says nothing about our code.
        generated = pathlib.Path(scratch, "c10/cuda/impl/cuda_cmake_macros.h")
        generated.parent.mkdir(parents=True)
        generated.touch()
        torch = options.torch / "include"
        cuda = [folder for folder in dict.fromkeys(headers[name] for name in NEEDED) if folder != pathlib.Path("/usr/include")]
        includes = [*options.include, torch, torch / "torch/csrc/api/include", *cuda, scratch]
        for source in sources:
            done = compile_one(options.compiler, source, includes)
            print(f"{source.relative_to(ROOT)}: {'compiles' if done.returncode == 0 else 'does not compile'}")
            if done.returncode != 0:
                failed.append(source)
                print("\n".join(line for line in done.stderr.splitlines()[:40]))
    print("headers:", ", ".join(f"{name} in {folder}" for name, folder in headers.items()))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Where a teacher's answers come from, and what a step then takes: live, beside the student, kept, and none; in turn, medians.

    bench/teacher_answers.py [--teacher resnet8] [--student cnn:width=0.3] [--data fashion-mnist] [--steps 60] [--rounds 5]

One worker with one thread, so that a core is left for a teacher beside it. `cached` says nothing of the time that it took to make the answers: the last line does. A teacher's speed does not depend on how
well it was trained, so it has few steps.
"""
import argparse
import json
import os
import statistics
import time

from compressed_rows import TRAINING, Folder, train
from support import run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="resnet8")
    parser.add_argument("--student", default="cnn:width=0.3")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with Folder() as folder:
        train(options.teacher, options.data, 3, folder / "teacher")
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        seconds, making = {}, 0
        for number in range(options.rounds):
            for how in ("none", "live", "beside", "cached"):
                words = ["train", "--model", options.student, "--data", options.data, *TRAINING["cnn"], "--steps", options.steps, "--val-samples", "100", "--test-samples", "0", "--threads", "1",
                         *([] if how == "none" else ["--teacher", folder / "teacher", "--teacher-answers", how]), "--run", folder / f"{how}-{number}", "--quiet", "--json"]
                begin = time.monotonic()
                code, out, err = run(words, env=environment, timeout=3600)
                assert code == 0, err
                done = next(line for line in map(json.loads, out.splitlines()) if line["event"] == "done")
                seconds.setdefault(how, []).append(done["measured_step_seconds"])
                if how == "cached" and number == 0:
                    making = time.monotonic() - begin
                elif how == "cached" and number == 1:
                    making -= time.monotonic() - begin
        print(f"student {options.student}, teacher {options.teacher}, {options.data}: one worker with one thread on {len(os.sched_getaffinity(0))} cores, {options.rounds} rounds in turn\n")
        print("| answers | a step | of live |\n|---|---|---|")
        for how, values in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(values, seconds["live"]))
            print(f"| {how} | {1e3 * statistics.median(values):.1f} ms | {ratio:.2f} |")
        print(f"\nAll answers once: {making:.0f} s")


if __name__ == "__main__":
    main()

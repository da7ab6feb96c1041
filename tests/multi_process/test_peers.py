"""PyTorch's side of a benchmark: one that hangs, fails or prints something else is left out, with the reason."""
import re

from support import Folder, check, finish, main, start

SAYS = {"hangs": ("sleep 1000", r"did not end within 6[0-9] s"), "fails": ("exit 3", "did not run with"), "no-number": ("echo '{\"step_ms\": \"x\"}'", "printed"), "no-time": ("echo '{\"step_ms\": 0}'", "printed"),
        "other-ranks": ("echo '{\"step_ms\": 1, \"ranks\": 77}'", "printed"), "another-line": ("echo warm; echo '[1]'", "did not run with")}


def test_what_does_not_measure_is_left_out():
    with Folder() as folder:
        (folder / "study.py").write_text("")
        running = {}
        for name, (script, _) in SAYS.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
            running[name] = start(["bench", "study", "--batch", 8, "--steps", 5, "--rounds", 1, "--peers", folder, "--python", folder / name], from_disk=True)
        for name, (_, why) in SAYS.items():
            code, out, err = finish(running[name], timeout=150)
            check(code == 0 and "by autograd" in out and "PyTorch loop:" not in out, f"{name}: {code}: {out}{err}")
            check(re.search(why + ".*; it is left out", err), f"{name}: {err}")


if __name__ == "__main__":
    main(globals())

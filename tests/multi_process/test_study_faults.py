"""What `cohort study run` says of ranks that are lost or say nothing."""
import os
import signal
import threading

from support import Folder, check, children, finish, main, start, wait_for

SPEC = """
[workload]
name = "test"
data = "noisy-quadratic:dimensions=40,sampled=1"
optimizer = "sgd"
[study]
goals = ["val_loss<0.3"]
batch_sizes = [1]
trials = 60
steps = 20000
diverged_above = 1000
[search]
learning_rate = { scale = "log", min = 1e-3, max = 0.1 }
"""


def begin(folder, *options):
    """A study of two ranks that both train; returns the job and rank 1."""
    (folder / "spec.toml").write_text(SPEC)
    process = start(["study", "run", folder / "spec.toml", "--out", folder / "study", "--workers", 2, "--no-censoring", "--quiet", *options])
    victim = wait_for(lambda: len(children(process.pid)) == 2 and children(process.pid)[1], "ranks start")
    wait_for(lambda: (folder / "study" / "in_progress").exists(), "the study begins")
    return process, victim


def test_a_silent_rank_is_named_and_waited_for():
    with Folder() as folder:
        process, victim = begin(folder, "--timeout", 0.1)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr.readline() for _ in range(1)))
        reader.start()
        os.kill(victim, signal.SIGSTOP)
        try:
            reader.join(60)
            check(lines and "warning" in lines[0] and "nothing has come from rank 1 for" in lines[0] and str(folder / "study") in lines[0], lines)
        finally:
            os.kill(victim, signal.SIGCONT)
        check(process.poll() is None, "the study goes on")
        process.terminate()
        code, _, err = finish(process)
        check(code == 130, f"{code} {err}")


def test_a_lost_rank_is_named_and_what_to_do():
    with Folder() as folder:
        process, victim = begin(folder)
        os.kill(victim, signal.SIGKILL)
        code, _, err = finish(process)
        check(code == 4 and "rank 1" in err and f"the same command goes on with {folder / 'study'}" in err, f"{code} {err}")


if __name__ == "__main__":
    main(globals())

"""Ranks that die, stop or are interrupted: named, ended within seconds, nothing left behind."""
import os
import random
import re
import resource
import signal
import socket
import subprocess
import time

from support import COHORT, Folder, TINY, check, children, finish, largest_difference, exported, is_caught, main, needs_own_process_ids, run, run_ok, session_members, skip, start, steps_in, wait_for

FOREVER = ["--steps", 1000000, "--quiet"]


def test_an_injected_kill_is_named_with_signal_and_step():
    with Folder() as folder:
        begin = time.monotonic()
        code, _, err = run(["train", *TINY, "--workers", 3, "--steps", 1000, "--inject", "kill:1:7", "--run", folder / "run"])
        check(code == 4, f"exit code {code}\n{err}")
        check(re.search(r"rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\) after step 7", err), err)
        check(time.monotonic() - begin < 20, "within seconds")


def test_kills_at_random_moments():
    """SIGKILL or SIGSEGV of either rank, from start-up to deep in training, checkpoints being written: named, nothing left, the newest checkpoint loads.

    COHORT_KILLS=100 COHORT_BIN=build/release/bin/cohort python3 tests/multi_process/test_faults.py test_kills_at_random_moments
    """
    generator = random.Random(1)
    trials = int(os.environ.get("COHORT_KILLS", 8))
    with_checkpoint, slowest = 0, 0.0
    for trial in range(trials):
        with Folder() as folder:
            process = start(["train", *TINY, "--workers", 2, *FOREVER, "--checkpoint-every", 5, "--run", folder / "run"])
            ranks = wait_for(lambda: len(children(process.pid)) == 2 and children(process.pid), "two ranks")
            if trial >= 2:
                wait_for(lambda: steps_in(folder / "run") > 0, "training")
            time.sleep(generator.uniform(0, 0.4))
            victim = trial % 2
            kind = (signal.SIGKILL, signal.SIGSEGV)[trial // 2 % 2]
            os.kill(ranks[victim], kind)
            begin = time.monotonic()
            code, _, err = finish(process, timeout=30)
            slowest = max(slowest, time.monotonic() - begin)
            check(slowest < 10, f"took {slowest} s")
            saved = [int(path.name[len("step-"):]) for path in (folder / "run/checkpoints").glob("step-*") if path.name[len("step-"):].isdigit()]
            if saved:
                with_checkpoint += 1
                run_ok(["train", folder / "run/config.toml", "--resume", "--steps", max(saved) + 1])
            check(code == 4 and f"rank {victim} (pid {ranks[victim]}) was killed by signal {int(kind)}" in err, f"trial {trial}: exit code {code}\n{err}")
    print(f"  {trials} kills, all named, {with_checkpoint} with a checkpoint that loaded; no process left; slowest end {slowest:.2f} s")


def test_a_stopped_rank_is_named_after_the_time_out():
    with Folder() as folder:
        process = start(["train", *TINY, "--workers", 2, *FOREVER, "--timeout", 2, "--run", folder / "run"])
        wait_for(lambda: steps_in(folder / "run") > 0, "training")
        stopped = children(process.pid)[1]
        os.kill(stopped, signal.SIGSTOP)
        begin = time.monotonic()
        code, _, err = finish(process, timeout=40)
        check(code == 4 and f"(pid {stopped})" in err and "stopped" in err, f"exit code {code}\n{err}")
        check(time.monotonic() - begin < 15, f"took {time.monotonic() - begin} s")


def test_ranks_that_slept_alike_go_on():
    """A suspended machine, Ctrl-Z: longer than the time-out, over memory and over a network."""
    with Folder() as folder:
        jobs = {backend: start(["train", *TINY, "--workers", 2, *FOREVER, "--timeout", 2, "--backend", backend, "--run", folder / backend]) for backend in ("shm", "gloo")}
        for backend in jobs:
            wait_for(lambda: steps_in(folder / backend) > 3, "training")
        everybody = [pid for job in jobs.values() for pid in session_members(job.pid)]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.5)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        for backend, job in jobs.items():
            before = steps_in(folder / backend)
            wait_for(lambda: steps_in(folder / backend) > before + 3 or job.poll() is not None, f"{backend}: more steps")
            job.send_signal(signal.SIGUSR1)     # As a batch system that was told to (Slurm's --signal).
            code, _, err = finish(job, timeout=30)
            check(code == 130 and (folder / backend / "checkpoints/latest").exists(), f"{backend}: exit code {code}\n{err}")


def test_the_first_process_of_a_container():
    """It is told to stop before LibTorch is loaded, and is the parent of whoever has none any more."""
    needs_own_process_ids()
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with Folder() as folder:
        process = subprocess.Popen([*inside, COHORT, "train", *TINY, *map(str, FOREVER), "--run", str(folder / "run")], stderr=subprocess.PIPE, text=True)
        first, = wait_for(lambda: children(process.pid), "the first process")
        wait_for(lambda: is_caught(first), "the handlers, before LibTorch is ready")
        os.kill(first, signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
        check(process.returncode == 130, f"{process.returncode} {err}")
        script = "(sleep 0.1 & ); sleep 0.6; ! grep -l 'State:.Z' /proc/[0-9]*/status"
        done = subprocess.run([*inside, COHORT, "launch", "-n", "1", "sh", "-c", script], capture_output=True, text=True, timeout=30)
        check(done.returncode == 0, f"{done.returncode} {done.stdout} {done.stderr}")


def test_a_time_out_with_one_copy_of_the_weights_tells_the_last_calls():
    with Folder() as folder:
        code, _, err = run(["train", *TINY, "--workers", 2, "--steps", 50, "--quiet", "--timeout", 2, "--inject", "pause:1:6", "--run", folder / "run"], timeout=60)
        check(code == 4, f"exit code {code}\n{err}")
        check(re.search(r"the reduce-scatter #\d+ of gradients \(\d+ Float, sum\) failed on rank 0 of 2: rank 1 \(pid \d+\) has not come to", err), err)
        check("last calls: rank 0 reduce-scatter #" in err, err)


def test_a_store_that_nobody_hosts_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: nobody answers there.
        world = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        with Folder() as folder:
            code, _, err = run(["train", *TINY, "--steps", 2, "--timeout", 1, "--run", folder / "run"], env={**os.environ, **world})
    check(code == 4 and "rank 1 cannot reach the store at 127.0.0.1:" in err, f"exit code {code}\n{err}")
    check("frame #" not in err and len(err.splitlines()) <= 2, err)


def test_doctor_measures_shared_memory_or_says_why_not():
    found = {line["name"]: line for line in run_ok(["doctor", "--json"])}
    check("measured" in found["shm"]["value"], found["shm"])
    check(not found["shm"]["value"].endswith("not measured"), f"without a reason: {found['shm']}")
    for name, finding in found.items():
        check(not (finding["works"] and finding["advice"]), f"{name} works and has advice: {finding}")


def test_a_limit_of_processes_is_named_wherever_it_is_met():
    if os.geteuid() != 0:
        skip("needs root: another user's limit")
    user = 20000 + os.getpid() % 40000    # Nobody else's processes count then.
    codes = []
    with Folder() as folder:
        folder.chmod(0o777)
        for limit in (2, 4, 5, 6, 7, 8, 9):
            def become_limited(limit=limit):
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
            code, _, err = run(["train", *TINY, "--steps", 4, "--workers", 1 + limit % 2, "--threads", 4, "--quiet", "--run", folder / str(limit)], preexec_fn=become_limited, env=dict(os.environ, HOME=str(folder)))
            if "Permission denied" in err:
                skip("another user cannot read the program here")
            check(code == 0 or (code == 4 and "ulimit -u" in err), f"limit {limit}: exit code {code}\n{err}")
            codes.append(code)
    check(4 in codes, f"no limit was met: {codes}")


def test_ranks_die_with_their_launcher():
    with Folder() as folder:
        process = start(["train", *TINY, "--workers", 2, *FOREVER, "--run", folder / "run"])
        wait_for(lambda: steps_in(folder / "run") > 0, "training")
        process.kill()
        begin = time.monotonic()
        while time.monotonic() - begin < 5 and (process.poll() is None or len(__import__("support").session_members(process.pid))):
            time.sleep(0.05)
        code, _, _ = finish(process)
        check(code == -signal.SIGKILL, code)


def test_interrupt_saves_and_resume_continues_bitwise():
    with Folder() as folder:
        whole = ["train", *TINY, "--workers", 2, "--steps", 600, "--eval-every", 1000]
        run_ok([*whole, "--run", folder / "whole"])
        for kind in (signal.SIGINT, signal.SIGTERM):
            name = f"parts-{int(kind)}"
            process = start([*whole, "--run", folder / name, "--inject", "slow:0:20"])
            wait_for(lambda: steps_in(folder / name) > 3, "training")
            process.send_signal(kind)
            code, _, err = finish(process, timeout=40)
            check(code == 130, f"exit code {code}\n{err}")
            stopped_at = steps_in(folder / name)
            check(0 < stopped_at < 600, f"stopped after step {stopped_at}")
            run_ok(["train", folder / name / "config.toml", "--resume"])
            check(exported(folder / name, folder) == exported(folder / "whole", folder), "weights differ from the run that was never stopped")
            check(steps_in(folder / name) == 600, "the rest was trained")


def test_ctrl_c_before_the_first_step_is_answered():
    for workers in (1, 2):
        for delay in (0, 0.05, 0.1, 0.2, 0.4):
            with Folder() as folder:
                process = start(["train", *TINY, "--workers", workers, *FOREVER, "--run", folder / "run"], from_disk=True)
                wait_for(lambda: is_caught(process.pid), "the handler, before LibTorch is ready")
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                code, _, err = finish(process, timeout=40)
                check(code == 130 and ("interrupted before the first step; nothing was saved" in err or "interrupted after step" in err), f"{workers}, {delay}: {code}\n{err}")
                if "before the first step" in err:
                    check(len(err.splitlines()) == 1 and not (folder / "run/checkpoints").exists(), err)
                check("before the first step" in err or delay > 0, f"at once: {err}")


def test_ctrl_c_in_the_terminal_stops_the_job():
    with Folder() as folder:
        process = start(["train", *TINY, "--workers", 2, *FOREVER, "--run", folder / "run"])
        wait_for(lambda: steps_in(folder / "run") > 0, "training")
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = finish(process, timeout=30)
        check(code == 130 and (folder / "run/checkpoints/latest").exists(), f"exit code {code}\n{err}")
        check("Traceback" not in err and "terminate" not in err, err)


def test_resume_after_a_kill_on_another_number_of_workers():
    with Folder() as folder:
        whole = ["train", *TINY[:6], "--steps", 60, "--eval-every", 1000, "--optimizer", "adamw", "--lr", "0.003"]
        run_ok([*whole, "--workers", 2, "--run", folder / "whole"])
        reference = exported(folder / "whole", folder)
        for workers in (2, 1, 3):
            name = f"on-{workers}"
            code, _, err = run([*whole, "--workers", 2, "--checkpoint-every", 10, "--inject", "kill:1:35", "--run", folder / name])
            check(code == 4, err)
            run_ok(["train", folder / name / "config.toml", "--resume", "--workers", workers, "--json"])
            difference = largest_difference(reference, exported(folder / name, folder))
            check(difference == 0 if workers == 2 else difference < 1e-4, f"{workers} workers: weights differ by {difference}")


def test_a_damaged_newest_checkpoint_is_skipped():
    with Folder() as folder:
        arguments = ["train", *TINY, "--steps", 30, "--checkpoint-every", 10, "--run", folder / "run"]
        run_ok(arguments)
        reference = exported(folder / "run", folder)
        shard = next((folder / "run/checkpoints/step-000000030").glob("*.safetensors"))
        raw = bytearray(shard.read_bytes())
        raw[-5] ^= 1
        shard.write_bytes(raw)
        code, out, _ = run(["checkpoint", "verify", folder / "run"])
        check(code == 1, out)
        code, _, err = run([*arguments, "--resume"])
        check(code == 0 and "checkpoint skipped" in err, err)
        check(exported(folder / "run", folder) == reference, "the lost steps were trained again, to the same weights")


def test_resume_of_something_else_is_refused():
    with Folder() as folder:
        arguments = ["train", *TINY, "--steps", 5, "--workers", 2, "--run", folder / "run"]
        run_ok(arguments)
        for change, word in ((["--model", "fc:hidden=17"], "model"), (["--optimizer", "adam"], "optimizer"), (["--global-batch", 16], "with --global-batch 32, this run has --global-batch 16"), (["--seed", 9], "seed")):
            rest = [text for pair in zip(arguments[1::2], arguments[2::2]) if pair[0] != change[0] for text in pair]
            code, _, err = run(["train", *rest, "--resume", *change])
            check(code == 2 and word in err, f"{change}: exit code {code}\n{err}")


if __name__ == "__main__":
    main(globals())

"""The same binary under every launcher: Open MPI's and MPICH's mpirun, torchrun, plain environment variables, `cohort launch`."""
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time

from support import COHORT, Folder, TINY, check, children, exported, finish, is_caught, main, mpi_launchers, run, run_ok, skip, start, steps_in, wait_for

STEPS = ["--steps", 12, "--json"]
OWN = pathlib.Path(COHORT).parent / "own_program"


def reference(folder):
    lines = run_ok(["train", *TINY, *STEPS, "--workers", 2, "--run", folder / "reference"])
    return [line["loss"] for line in lines if line["event"] == "step"]


def losses_under(command, folder, name, environment=None):
    whole = [*command, COHORT, "train", *TINY, *STEPS, "--run", folder / name]
    result = subprocess.run([str(word) for word in whole], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environment)
    check(result.returncode == 0, f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    check(lines[0]["world_size"] == 2, lines[0])
    return [line["loss"] for line in lines if line["event"] == "step"]


def test_mpirun():
    with Folder() as folder:
        expected = reference(folder)
        for name in mpi_launchers():
            check(losses_under([name, "-n", "2"], folder, name) == expected, f"{name}: other losses")


def test_torchrun():
    python = os.environ.get("COHORT_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        skip(f"no torch in {python}")
    with Folder() as folder:
        expected = reference(folder)
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "--"]     # Without -- torchrun takes --run for one of its own.
        check(losses_under(command, folder, "torchrun") == expected, "torchrun: other losses")


def test_torchrun_restarts_what_was_killed():
    python = os.environ.get("COHORT_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        skip(f"no torch in {python}")
    with Folder() as folder:
        steps = ["--steps", "300", "--checkpoint-every", "20", "--quiet"]
        run_ok(["train", *TINY, *steps, "--workers", 2, "--run", folder / "whole"])
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "5", "--monitor-interval", "0.1", "--no-python", "--",
                   COHORT, "train", *TINY, *steps, "--run", str(folder / "run"), "--inject", "slow:0:9", "--resume=auto"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for victim, steps_before in ((1, 4), (0, 60)):
            wait_for(lambda: process.poll() is not None or steps_in(folder / "run") >= steps_before, "some steps")
            os.kill(sorted(children(process.pid))[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        check(process.returncode == 0 and (folder / "run/metrics.jsonl").read_text().count('"event":"resume"') >= 1, err)
        check(exported(folder / "run", folder) == exported(folder / "whole", folder), "the same weights as of one that nobody killed")


def test_plain_variables_and_a_store_on_one_address_only():
    with Folder() as folder:
        expected = reference(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank in (1, 0):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            processes.append(start(["train", *TINY, "--steps", 12, "--json", "--inject", "pause:0:2", "--run", folder / "run"], env=environment))

        def listeners():
            text = "".join(pathlib.Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6"))
            return [line.split()[1] for line in text.splitlines() if line.split()[3:4] == ["0A"] and line.split()[1].endswith(f":{port:04X}")]

        found = wait_for(listeners, "the store")
        check(found == [f"0100007F:{port:04X}"], f"the store listens on {found}")
        for process in processes:
            code, out, err = finish(process)
            check(code == 0, err)
        losses = [json.loads(line)["loss"] for line in out.splitlines() if '"event":"step"' in line]
        check(losses == expected, "other losses")


def free_port(address="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def by_hand(rank, port, size=2, address="127.0.0.1", **more):
    """torchrun's variables; without a port Open MPI's, whose ranks meet over a local socket."""
    clean = without("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COHORT_STORE_FD")
    if not port:
        return {**clean, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
                "PMIX_NAMESPACE": f"test-{os.getpid()}", **more}
    return {**clean, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port), **more}


def test_a_rank_that_waits_for_its_peers_ends_when_it_is_told_to():
    """Rank 0 that hosts the store, rank 1 that finds none, one that finds a server which says nothing, and both without an address."""
    with Folder() as folder, socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = free_port()
        cases = [(0, port, signal.SIGINT), (1, free_port(), signal.SIGTERM), (1, mute.getsockname()[1], signal.SIGTERM), (0, 0, signal.SIGTERM), (1, 0, signal.SIGUSR1)]
        processes = [start(["train", *TINY, "--steps", 5, "--run", folder / str(i)], env=by_hand(rank, port, PMIX_NAMESPACE=f"test-{os.getpid()}-{i}")) for i, (rank, port, _) in enumerate(cases)]
        for process, case in zip(processes, cases):
            wait_for(lambda: is_caught(process.pid, signal.SIGUSR1) or process.poll() is not None, f"{case}: the training's handlers")
        time.sleep(0.5)     # In which a quiet machine gets to the meeting; the answer is the same before it.
        begin = time.monotonic()
        for process, (_, _, number) in zip(processes, cases):
            process.send_signal(number)
        for process, case in zip(processes, cases):
            code, _, err = finish(process, timeout=30)
            check(code == 130 and err.count("interrupted before the first step; nothing was saved") == 1, f"{case}: {code}\n{err}")
        check(time.monotonic() - begin < 30, "as long as the time-out")


def test_what_one_rank_refuses_ends_all():
    """A folder that holds a run, which rank 0 alone looks at, and bad input that another rank alone has; over an address and over a local socket."""
    with Folder() as folder:
        run_ok(["train", *TINY, "--steps", 2, "--quiet", "--run", folder / "run"])
        for port in (free_port(), 0):
            for bad, words, texts in ((0, ["--run", folder / "run"], ["already holds a run"]), (1, ["--run", folder / f"new{port}"], ["--lr"])):
                begin = time.monotonic()
                ranks = [start(["train", *TINY, "--steps", 2, *words, *(["--lr", "-1"] if rank == bad == 1 else [])], env=by_hand(rank, port)) for rank in (1, 0)]
                results = [finish(process, timeout=50) for process in ranks]
                check(all(code == 2 for code, _, _ in results), results)
                check(all(text in "".join(err for _, _, err in results) for text in texts), results)
                check(time.monotonic() - begin < 40, "as long as the time-out")


def test_a_program_that_a_rank_of_launch_starts():
    """Without its descriptors, as Python's subprocess does; one after the other; and in an environment that is left of a launcher."""
    with Folder() as folder:
        expected = reference(folder)
        words = ["train", *TINY, *map(str, STEPS), "--run"]
        wrapper = f"import subprocess, sys; sys.exit(subprocess.run({[COHORT, *words, str(folder / 'wrapped')]!r}).returncode)"
        lines = run_ok(["launch", "-n", 2, sys.executable, "-c", wrapper, "--json"])
        check([line["loss"] for line in lines if line["event"] == "step"] == expected, "ranks behind Python: other losses")
        both = " && ".join(f'"$0" {" ".join(words)} "$1/{name}"' for name in ("first", "second"))
        lines = run_ok(["launch", "-n", 2, "sh", "-c", both, COHORT, folder, "--json"])
        check([line["loss"] for line in lines if line["event"] == "step"] == 2 * expected, "one training after the other: other losses")
        code, _, err = run(["train", *TINY, "--steps", 2, "--run", folder / "stale"], env=dict(os.environ, COHORT_STORE_FD="77", RANK="0", WORLD_SIZE="2"), timeout=30)
        check(code == 4 and "is left of a `cohort launch`" in err and "env -u COHORT_STORE_FD" in err, f"{code}\n{err}")


def test_addresses_of_ipv6():
    try:
        port = free_port("::1")
    except OSError as error:
        skip(f"no IPv6 here: {error}")
    with Folder() as folder:
        expected = reference(folder)
        ranks = [start(["train", *TINY, *STEPS, "--backend", "gloo", "--run", folder / "run"], env=by_hand(rank, port, address="[::1]")) for rank in (1, 0)]
        results = [finish(process, timeout=60) for process in ranks]
        check(all(code == 0 for code, _, _ in results), results)
        check([json.loads(line)["loss"] for line in results[1][1].splitlines() if '"event":"step"' in line] == expected, "[::1]: other losses")


def test_a_killed_rank_under_mpirun():
    mpirun = mpi_launchers()[0]
    with Folder() as folder:
        command = [mpirun, "-n", "2", COHORT, "train", *TINY, "--steps", "100000", "--quiet", "--inject", "kill:1:9", "--run", str(folder / "run")]
        begin = time.monotonic()
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        check(result.returncode != 0 and time.monotonic() - begin < 30, f"{result.returncode} {result.stderr}")


def test_survivors_name_the_dead_rank_when_nobody_supervises():
    with Folder() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank in (0, 1, 2):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            processes.append(start(["train", *TINY, "--steps", 100000, "--quiet", "--run", folder / "run", "--inject", "kill:1:9"], env=environment))
        check(processes[1].wait(60) == -signal.SIGKILL, "rank 1 kills itself")
        named = 0
        for rank in (0, 2):
            code, _, err = finish(processes[rank], timeout=30)
            check(code == 4, f"rank {rank}: exit code {code}\n{err}")
            named += f"rank 1 (pid {processes[1].pid}) has ended" in err
        check(named >= 1, "a survivor names rank 1")
        processes[1].communicate()


def test_launch_starts_any_program():
    code, out, err = run(["launch", "-n", "3", "sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR"])
    check(code == 0 and sorted(out.split("\n"))[1:] == ["0/3 0 127.0.0.1", "1/3 1 127.0.0.1", "2/3 2 127.0.0.1"], out + err)
    code, _, err = run(["launch", "-n", "2", "sh", "-c", "test $RANK = 0 || exit 7; sleep 60"])
    check(code == 7 and "rank 1" in err and "code 7" in err, err)
    with Folder() as folder:
        expected = reference(folder)
        check(losses_under([COHORT, "launch", "-n", "2"], folder, "launch") == expected, "cohort launch: other losses")
        code, _, err = run(["launch", "-n", "2", COHORT, "train", *TINY, *STEPS, "--grace", 5, "--run", folder / "grace"])
        check(code == 2 and "leave --grace out, and give it to cohort launch" in err and not (folder / "grace").exists(), f"{code}: {err}")


def test_what_a_shell_script_of_launch_started_saves_before_it_is_ended():
    with Folder() as folder:
        # The shell dies of the signal at once; its child finishes the step and saves.
        train = " ".join(map(str, [COHORT, "train", *TINY, "--steps", 10000000, "--inject", "slow:0:50", "--quiet", "--run", folder / "run"]))
        (folder / "job.sh").write_text(f"{train}\necho done\n")
        process = start(["launch", "-n", 2, "sh", folder / "job.sh"])
        wait_for(lambda: steps_in(folder / "run") >= 3 or process.poll() is not None, "three steps")
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process, timeout=60)
        check(code == 130 and "interrupted after step" in err and "done" not in out, f"{code}: {out}{err}")
        check(list((folder / "run/checkpoints").glob("step-*")) and (folder / "run/report.html").exists(), sorted(folder.rglob("*")))


def own(how, who=1, ranks=2, **options):
    """`cohort launch` of a program that catches nothing: exit code, stdout, stderr without the line of the start."""
    code, out, err = run(["launch", "-n", ranks, OWN, how, who], timeout=60, **options)
    check("OMP_NUM_THREADS=" in err.splitlines()[0], err)
    return code, out, "".join(line + "\n" for line in err.splitlines()[1:])


def without(*names, **more):
    return {**{name: value for name, value in os.environ.items() if name not in names}, **more}


def test_a_rank_gets_its_share_of_the_cores():
    cores = sorted(os.sched_getaffinity(0))

    def seen(ranks, environment, cores_to_use=None):
        code, out, err = run(["launch", "-n", ranks, OWN, "threads"], env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores_to_use or cores))
        check(code == 0, err)
        lines = [line.split() for line in out.splitlines()]
        check(sorted(line[0] for line in lines) == [str(rank) for rank in range(ranks)], out)
        check(len({(line[1], line[2]) for line in lines}) == 1, out)
        return lines[0][1], lines[0][2], err

    plain = without("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    usable = int(re.search(r" on (\d+) core", seen(1, plain)[2]).group(1))      # Fewer than the affinity's where a cgroup has a quota.
    check(1 <= usable <= len(cores), f"{usable} of {len(cores)} cores")
    cores = cores[:usable]
    for ranks in (1, 2, 3):
        wanted = str(max(1, len(cores) // ranks))
        threads, variable, err = seen(ranks, plain)
        check((threads, variable) == (wanted, wanted), f"{ranks} ranks: {threads} threads, OMP_NUM_THREADS={variable}, not {wanted}")
        check(f"cohort: {ranks} rank" in err and f" on {len(cores)} core" in err and f"OMP_NUM_THREADS={wanted}" in err, err)
        threads, variable, err = seen(ranks, dict(plain, OMP_NUM_THREADS="2"))     # MKL takes no more threads than there are cores.
        check((threads, variable) == (str(min(2, len(cores))), "2") and "OMP_NUM_THREADS=2 as in the environment" in err, f"{threads} {variable} {err}")
    check(seen(3, dict(plain, MKL_NUM_THREADS="1"))[1] == str(max(1, len(cores) // 3)), "MKL_NUM_THREADS is another matter")
    check(seen(1, plain, cores[:1])[:2] == ("1", "1"), "one core, one rank")
    check(seen(2, plain, cores[:1])[:2] == ("1", "1"), "one core, two ranks")
    check(seen(1, dict(plain, COHORT_LOG="warning"))[2] == "", "COHORT_LOG=warning leaves the line out")


def test_lines_of_ranks_stay_whole():
    wanted = sorted(f"rank {rank} line {line} of many" for rank in range(3) for line in range(3000))
    for command in ([COHORT, "launch", "-n", "3", OWN, "lines"], [OWN, "lines", "--workers", "3"]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        check(result.returncode == 0 and sorted(result.stdout.splitlines()) == wanted, f"{command}: {result.stderr}")
        with Folder() as folder:
            with open(folder / "out", "w") as out:
                subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, timeout=60, check=True)
            check(sorted((folder / "out").read_text().splitlines()) == wanted, f"{command} into a file")


def test_an_error_that_nobody_catches():
    rank_1 = r"cohort: error: rank 1 \(pid \d+\) "
    for how in ("error", "thread"):
        code, out, err = own(how)
        check(code == 2 and re.fullmatch(rank_1 + r"exited with code 2: weights.pt has 3 tensors, 4 are needed; the other ranks were ended\n", err), f"{how}: {code} {err}")
        check("said before" in out, f"{how}: what was printed is lost")
    code, _, err = own("runtime")
    check(code == 1 and re.fullmatch(rank_1 + r"exited with code 1: not of Cohort; the other ranks were ended\n", err), f"{code} {err}")
    code, _, err = own("number")
    check(code == 1 and re.fullmatch(rank_1 + r"exited with code 1: an exception of type int, which is no std::exception and says nothing else; the other ranks were ended\n", err), f"{code} {err}")
    code, out, err = own("handled")
    check(code == 9 and "own handler" in out and re.fullmatch(rank_1 + r"exited with code 9; the other ranks were ended\n", err), f"{code} {out} {err}")
    result = subprocess.run([OWN, "error", "0"], capture_output=True, text=True, timeout=60)
    check(result.returncode == 2 and result.stderr == "cohort: error: weights.pt has 3 tensors, 4 are needed\n", result.stderr)
    result = subprocess.run([OWN, "threads"], capture_output=True, text=True, timeout=60, env=without("WORLD_SIZE", RANK="0"))
    check(result.returncode == 4 and re.fullmatch("cohort: error: .*WORLD_SIZE.*\n", result.stderr), result.stderr)
    # In a shell the launcher sees the shell end: the rank prints its line itself.
    code, _, err = run(["launch", "-n", "2", "sh", "-c", f"{OWN} error 1; exit 0"], timeout=60)
    check(code == 0 and "cohort[1]: error: weights.pt has 3 tensors, 4 are needed\n" in err, err)


def loop(*words, **options):
    """A training loop behind init(): exit code, stdout, stderr."""
    result = subprocess.run([str(word) for word in (OWN, "loop", *words)], capture_output=True, text=True, timeout=60, **options)
    return result.returncode, result.stdout, result.stderr


def test_an_exception_in_a_loop_of_ones_own():
    says = {"libtorch": r"mat1 and mat2 shapes cannot be multiplied \(2x4 and 3x2\)", "memory": r".*can't allocate memory: you tried to allocate \d+ bytes.*",
            "bad_alloc": "out of memory: an allocation was refused; use smaller batches or more workers", "lines": "sample 3: no label"}
    for what, text in says.items():
        code, _, err = loop(0, what)
        check(code == 1 and re.fullmatch(f"cohort: error: {text}\n", err), f"{what}, alone: {code} {err}")
        begin = time.monotonic()
        code, _, err = loop(1, what, "--workers", 2)
        check(code == 1 and re.fullmatch(rf"cohort: error: rank 1 \(pid \d+\) exited with code 1: {text}; the other ranks were ended\n", err), f"{what}: {code} {err}")
        check(time.monotonic() - begin < 20, f"{what}: the other rank waited")
        check("frame #" not in err and "terminate called" not in err, err)


def test_words_that_init_takes():
    wrong = {("--workers", "x"): "--workers x: a number of processes from 1 to 1024 is wanted", ("--workers", "0"): "--workers 0: a number of processes from 1 to 1024 is wanted",
             ("--workers",): "--workers needs a value", ("--layout",): "--layout needs a value", ("--backend",): "--backend needs a value", ("--workers=",): "--workers needs a value",
             ("--layout", "--workers", "2"): "--layout needs a value", ("--workers", "2", "--layout", "tp=x"): None}
    for words, text in wrong.items():
        code, _, err = loop(9, "nothing", *words)
        check(code == 2 and err.count("\n") == 1 and (text is None or err == f"cohort: error: {text}\n"), f"{words}: {code} {err}")
    # The program's own options stay, those of nearly the same name too: of these there is a word.
    code, out, err = loop(9, "nothing", "--wokers", "2", "--layers=3", "--worker=4", "--", "--workrs")
    check(code == 0 and out.split() == "left 9 left nothing left --wokers left 2 left --layers=3 left --worker=4 left -- left --workrs".split(), out)
    check(err == "cohort: warning: init() leaves --wokers to the program (did you mean --workers?)\ncohort: warning: init() leaves --worker to the program (did you mean --workers?)\n", err)
    code, _, err = loop(9, "nothing", "--wokers", "2", "--workers", "2")
    check(code == 0 and err.count("--wokers") == 1, f"told once: {err}")
    check(loop(9, "nothing", "--wokers", "2", env=dict(os.environ, COHORT_LOG="error"))[2] == "", "COHORT_LOG=error leaves the warning out")


def test_an_error_that_nobody_catches_under_mpirun():
    mpirun = mpi_launchers()[-1]
    result = subprocess.run([mpirun, "-n", "2", OWN, "error", "1"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    check(result.returncode != 0 and "cohort[1]: error: weights.pt has 3 tensors, 4 are needed" in result.stderr + result.stdout, result.stderr)
    check("terminate called" not in result.stderr + result.stdout, result.stderr)


def test_how_a_rank_of_an_own_program_ends():
    rank_1 = r"cohort: error: rank 1 \(pid \d+\) "
    code, _, err = own("kill")
    check(code == 4 and re.fullmatch(rank_1 + r"was killed by signal 9 \(SIGKILL\); the other ranks were ended\n", err), f"kill: {code} {err}")
    code, _, err = own("exit")
    check(code == 3 and re.fullmatch(rank_1 + r"exited with code 3; the other ranks were ended\n", err), f"exit: {code} {err}")
    # Where the program prints errors itself, the rank that ended first is the one to blame.
    code, _, err = own("caught-error", ranks=3)
    check(code == 1 and re.search(rank_1 + r"exited with code 1; the other ranks were ended\n$", err), f"caught: {code} {err}")
    check("own_program: weights.pt has 3 tensors, 4 are needed" in err, err)
    # One that leaves with 0 is named by those that miss it; on a busy machine it may still be leaving then.
    code, _, err = own("leave")
    left = r"; (rank 1 \(pid \d+\) had left before it with code 0|the other ranks were ended)\n$"
    check(code == 4 and re.search(r"rank 0 \(pid \d+\) exited with code 4: .*second sum.*rank 1 \(pid \d+\) has ended.*" + left, err), f"leave: {code} {err}")


def test_ctrl_c_to_an_own_program():
    process = start(["launch", "-n", "2", OWN, "forever"])
    check(process.stdout.readline() == "begun\n", "it begins")
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process, timeout=30)
    check(code == 130 and err.splitlines()[1:] == ["cohort: told the ranks to stop; once more to stop at once"], f"{code} {err}")


def test_a_rank_that_reads_the_terminal_is_not_stopped():
    try:
        controller, terminal = pty.openpty()
    except OSError as error:  # A container without /dev/pts: nothing that we can install.
        skip(f"no terminal to be had here: {error}", also_in_ci=True)
    result = subprocess.run([COHORT, "launch", "-n", "2", "sh", "-c", "read line; echo got $line."], stdin=terminal, capture_output=True, text=True, timeout=30,
                            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    check(result.returncode == 0 and result.stdout == "got .\ngot .\n", f"{result.returncode} {result.stdout} {result.stderr}")
    os.close(controller)
    os.close(terminal)


if __name__ == "__main__":
    main(globals())

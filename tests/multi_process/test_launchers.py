"""The same binary under every launcher: Open MPI's and MPICH's mpirun, torchrun, plain environment variables, `cohort launch`."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from support import COHORT, Folder, TINY, check, children, finish, main, run, run_ok, skip, start, steps_in, wait_for

STEPS = ["--steps", 12, "--json"]


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
        found = [name for name in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(name)]
        check(found or not os.environ.get("CI"), "CI has both MPIs")
        for name in found:
            check(losses_under([name, "-n", "2"], folder, name) == expected, f"{name}: other losses")


def test_torchrun():
    python = os.environ.get("COHORT_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print("no torch in", python)
        return
    with Folder() as folder:
        expected = reference(folder)
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "--"]     # Without -- torchrun takes --run for one of its own.
        check(losses_under(command, folder, "torchrun") == expected, "torchrun: other losses")


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


def test_a_killed_rank_under_mpirun():
    mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if not mpirun:
        print("no mpirun")
        return
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


if __name__ == "__main__":
    main(globals())

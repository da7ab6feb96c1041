"""MPI between hosts: one real mpirun whose ranks live in several network name spaces. Where mpirun would reach a host by ssh it calls a script
that enters the name space instead, with a host name of its own; all else (daemons, TCP between ranks) is as between machines."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

from support import COHORT, Folder, TINY, check, main, mpi_launchers, run_ok, wait_for
from test_hosts import BOUND, Hosts, TOKEN, losses_in
from test_mpi import ORACLE

# mpirun calls it as it would call ssh: [options] ADDRESS COMMAND.
AGENT = """#!/bin/sh
while case $1 in -*) true;; *) false;; esac; do shift; done
host=$((${1##*.} - 1)); shift
exec ip netns exec PREFIX-$host unshare --uts sh -c "echo PREFIX-$host > /proc/sys/kernel/hostname; $*"
"""


class Cluster:
    """mpirun on hosts of two ranks each."""

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.agent = folder / "agent"
        self.agent.write_text(AGENT.replace("PREFIX", hosts.names[0].rsplit("-", 1)[0]))
        self.agent.chmod(0o755)

    def start(self, launcher, arguments, options=()):
        addresses = ",".join(f"10.77.0.{host + 1}:2" for host in range(len(self.hosts.names)))
        if "openmpi" in launcher:
            how = ["--host", addresses, "--mca", "plm_rsh_agent", self.agent, "-x", "MASTER_ADDR=10.77.0.1", "-x", "MASTER_PORT=29500", "-x", "COHORT_TOKEN"]
        else:
            how = ["-launcher", "ssh", "-launcher-exec", self.agent, "-hosts", addresses, "-env", "MASTER_ADDR", "10.77.0.1", "-env", "MASTER_PORT", "29500", "-env", "COHORT_TOKEN", TOKEN]
        ranks = 2 * len(self.hosts.names)
        command = ["ip", "netns", "exec", self.hosts.names[0], shutil.which(launcher), "-n", ranks, *how, *options, *arguments]
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                env=dict(os.environ, COHORT_TOKEN=TOKEN))

    def run(self, launcher, arguments, timeout=150):
        process = self.start(launcher, arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            end(process)
            raise
        return process.returncode, out, err


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_training_equals_that_of_one_process():
    with Folder() as folder, Hosts(2) as hosts:
        cluster = Cluster(hosts, folder)
        steps = ["--steps", 8, "--json"]
        expected = losses_in(run_ok(["train", *TINY, *steps, "--workers", 1, "--run", folder / "reference"]))
        for launcher in mpi_launchers():
            before = hosts.sent_bytes(1)
            code, out, err = cluster.run(launcher, [COHORT, "train", *TINY, *steps, "--backend", "shm+mpi", "--run", folder / launcher])
            check(code == 0, f"{launcher}: exit code {code}\n{out}\n{err}")
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            check(lines[0]["backend"] == "shm+mpi" and lines[0]["world_size"] == 4, lines[0])
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses_in(lines), expected, strict=True))
            check(worst <= BOUND, f"{launcher}: losses differ by {worst}")
            check(hosts.sent_bytes(1) > before, "nothing went over the network")


def test_every_operation_gives_the_answer_of_the_oracle():
    with Folder() as folder, Hosts(2, megabits=2000) as hosts:
        cluster = Cluster(hosts, folder)
        for launcher in mpi_launchers():
            for part, words in (("oracle", "calls right over shm+mpi"), ("groups", ""), ("mismatch", "as expected")):
                code, out, err = cluster.run(launcher, [ORACLE, "shm+mpi", part])
                check(code == 0 and words in out, f"{launcher}, {part}: exit code {code}\n{out}\n{err}")
                check(part != "mismatch" or out.count("rank 3") >= 4, out)


def test_a_killed_rank_is_named_by_every_rank_that_is_left():
    # mpirun is told to leave the others alone; otherwise it ends the job and names the rank itself.
    left_alone = {"mpirun.openmpi": (["--enable-recovery"], [0, 1, 3]), "mpirun.mpich": (["-disable-auto-cleanup"], [0, 1])}
    for launcher in mpi_launchers():
        with Folder() as folder, Hosts(2) as hosts:
            cluster = Cluster(hosts, folder)
            options, survivors = left_alone[launcher]
            heard = folder / "errors"
            command = [COHORT, "train", *TINY, "--steps", 1000000, "--quiet", "--backend", "shm+mpi", "--timeout", 4, "--inject", "kill:2:9", "--run", folder / "run"]
            process = cluster.start(launcher, ["sh", "-c", 'exec "$0" "$@" 2>>' + str(heard), *command], options)
            try:
                said = lambda rank: [line for line in read(heard).splitlines() if line.startswith(f"cohort[{rank}]: error")]
                wait_for(lambda: all(said(rank) for rank in survivors), f"{launcher}: errors of ranks {survivors}")
            finally:
                end(process)
            for rank in survivors:
                check("rank 2 (pid" in said(rank)[0], f"{launcher}: rank {rank} does not name rank 2: {said(rank)[0]}")
                check("rank 0 (pid" not in said(rank)[0] and "rank 1 (pid" not in said(rank)[0], f"{launcher}: rank {rank} blames another: {said(rank)[0]}")


def read(path):
    return pathlib.Path(path).read_text() if os.path.exists(path) else ""


if __name__ == "__main__":
    main(globals())

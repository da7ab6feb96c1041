"""cohort study run on several hosts, under launchers of others, and when ranks are lost. Hosts are network name spaces (test_hosts.py); the ranks
of a job "by hand" have torchrun's variables and nobody who looks after them, so that the survivors themselves must end and say why."""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

from support import COHORT, Folder, check, children, finish, kill_session, main, run_ok, skip, start, wait_for
from test_hosts import Hosts, TOKEN
from test_study import MODEL, num_stored, stored, write as write_spec

AGAIN = "the same command goes on with"


def write(folder, trials=4, steps=600, censoring="false"):
    """Batch size 4 trains alone; 32 in teams of two, wherever there are two ranks."""
    return write_spec(folder, MODEL, trials=trials, steps=steps, censoring=censoring, max_rate=0.1, max_batch=16)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listeners(port):
    text = "".join(pathlib.Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6"))
    return [line for line in text.splitlines() if line.split()[3:4] == ["0A"] and line.split()[1].endswith(f":{port:04X}")]


def ports_of(pid):
    """Where a process listens."""
    sockets = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


class Job:
    """Ranks by hand. Without hosts all are on this machine; with them rank r is on hosts.names[host_of_rank[r]], and only rank 0's host has
    `folder`/store: on the others an empty file system that nobody can write to lies over it."""

    def __init__(self, arguments, host_of_rank, hosts=None, folder=None):
        self.ranks = []
        self.port = 29500 if hosts else free_port()
        for rank, host in enumerate(host_of_rank):
            here = [other for other, its_host in enumerate(host_of_rank) if its_host == host]
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(host_of_rank)), LOCAL_RANK=str(here.index(rank)), LOCAL_WORLD_SIZE=str(len(here)),
                               MASTER_ADDR="10.77.0.1" if hosts else "127.0.0.1", MASTER_PORT=str(self.port), COHORT_TOKEN=TOKEN)
            command = [COHORT, *map(str, arguments)]
            if hosts:
                hide = f"mount -t tmpfs -o ro none '{folder}/store' && " if host != host_of_rank[0] else ""
                command = ["ip", "netns", "exec", hosts.names[host], "sh", "-c", hide + 'exec "$@"', "sh", *command]
            self.ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment))
        self.has_own_port = not hosts

    def finish(self, timeout=120):
        """[(exit code, stdout, stderr)] of all ranks; none of their processes and no port stays."""
        try:
            results = [finish(process, timeout) for process in self.ranks]
        finally:
            for process in self.ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        check(not self.has_own_port or not listeners(self.port), f"port {self.port} is still open")
        return results

    def finish_ok(self):
        results = self.finish()
        for rank, (code, _, err) in enumerate(results):
            check(code == 0, f"rank {rank}: exit code {code}\n{err}")
        return results[0][1]


def study(spec, out, *more):
    return ["study", "run", spec, "--out", out, "--quiet", *more]


def whole(folder, spec, workers):
    """An undisturbed run on this host."""
    run_ok(study(spec, folder / f"whole{workers}", "--workers", workers))
    return stored(folder / f"whole{workers}")


def of_batch(trials, batch_size):
    return [trial for trial in trials if trial[0][0] == batch_size]


def team_trials(study_folder):
    try:
        with sqlite3.connect(f"file:{study_folder}/study.db?mode=ro", uri=True) as database:
            return database.execute("SELECT count(*) FROM trials WHERE batch_size = 32").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def wait_for_teams(study_folder, processes, more_than=0):
    wait_for(lambda: team_trials(study_folder) > more_than or any(process.poll() is not None for process in processes), "the first trial of a team", 120)


def check_goes_on(spec, study_folder, workers, expected):
    """What is left is run, nothing else, and it is as if nothing had happened."""
    before = stored(study_folder)
    check(0 < len(before) < len(expected), f"{len(before)} of {len(expected)} trials were done: nothing was disturbed")
    lines = run_ok(study(spec, study_folder, "--workers", workers, "--json"))
    now_stored = sorted((line["batch_size"], line["trial"]) for line in lines if line["event"] == "trial")
    check(stored(study_folder) == expected, "another study than the undisturbed one")
    check(now_stored == sorted(tuple(trial[0][:2]) for trial in expected if trial not in before), f"run again, or not at all: {now_stored}")
    check(not (study_folder / "in_progress").exists(), "files of running trials stay behind")


def test_two_hosts_store_what_one_host_does_and_only_rank_0_needs_the_folder():
    with Folder() as folder, Hosts(2) as hosts:
        spec = write(folder, censoring="true")
        alone, together = whole(folder, spec, 1), whole(folder, spec, 4)
        check(of_batch(alone, 4) == of_batch(together, 4), "the number of workers changed trials of one worker")
        (folder / "store").mkdir()
        for name, host_of_rank in (("inside", [0, 0, 1, 1]), ("across", [0, 1, 1, 0])):     # Teams inside of a host, and of one rank on each.
            Job(study(spec, folder / "store" / name), host_of_rank, hosts, folder).finish_ok()
            check(stored(folder / "store" / name) == together, f"teams {name} hosts: other trials than on one host")
            check(not (folder / "store" / name / "in_progress").exists(), "files of running trials stay behind")


def test_torchrun():
    python = os.environ.get("COHORT_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        skip(f"no torch in {python}")
    with Folder() as folder:
        spec = write(folder)
        expected = whole(folder, spec, 2)
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "--", COHORT, *study(spec, folder / "study", "--json")]
        result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        check(result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
        check(stored(folder / "study") == expected, "other trials under torchrun")
        check(sum('"steps_to_result"' in line for line in result.stdout.splitlines()) == 2, result.stdout)


def slurm(rank, count, **more):
    return dict(os.environ, SLURM_PROCID=str(rank), SLURM_NTASKS=str(count), SLURM_STEP_NUM_TASKS=str(count), SLURM_LOCALID=str(rank), SLURM_JOB_ID=str(os.getpid()),
                SLURM_STEP_ID="0", SLURM_STEP_TASKS_PER_NODE=str(count), SLURM_NODELIST="here", **more)


def test_under_srun_s_variables():
    with Folder() as folder:
        spec = write(folder)
        expected = whole(folder, spec, 2)
        for name, more in (("one host", {}), ("master", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})):
            for code, _, err in [finish(process) for process in [start(study(spec, folder / name), env=slurm(rank, 2, **more)) for rank in (1, 0)]]:
                check(code == 0, f"{name}: exit code {code}\n{err}")
            check(stored(folder / name) == expected, f"{name}: other trials")


def test_strangers_at_its_ports_do_not_disturb_it():
    with Folder() as folder, contextlib.ExitStack() as sockets:
        spec = write(folder, trials=8, steps=1500)
        expected = whole(folder, spec, 2)
        job = Job(study(spec, folder / "study"), [0, 0])
        wait_for(lambda: num_stored(folder / "study") > 0 or job.ranks[0].poll() is not None, "the first trial")
        ports = [port for port in ports_of(job.ranks[0].pid) if port != job.port]
        check(ports, "rank 0 listens nowhere but in its store")
        generator = random.Random(18)
        for port in ports * 20:
            stranger = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))     # Some stay, and say nothing.
            with contextlib.suppress(OSError):
                stranger.sendall(generator.randbytes(generator.choice((0, 1, 11, 64, 5000))))
        check(num_stored(folder / "study") < len(expected), "the study was over before anybody knocked")
        job.finish_ok()
        check(stored(folder / "study") == expected, "strangers changed what is stored")


def test_ranks_killed_in_a_team_end_the_job_and_it_goes_on():
    # On one folder, one after the other: a rank that follows in its team, one that leads it, rank 0, all at once.
    with Folder() as folder:
        spec = write(folder, trials=48, steps=1500)
        expected = whole(folder, spec, 4)
        for victims in ([3], [2], [0], [0, 1, 2, 3]):
            job = Job(study(spec, folder / "study"), [0, 0, 0, 0])
            wait_for_teams(folder / "study", job.ranks, team_trials(folder / "study"))
            for victim in victims:
                job.ranks[victim].kill()
            results = job.finish()
            for rank, (code, _, err) in enumerate(results):
                what = f"rank(s) {victims} killed, rank {rank}: exit code {code}\n{err}"
                check(code == (-signal.SIGKILL if rank in victims else 4), what)
                check(rank in victims or f"rank {victims[0]}" in err, what)
            if 0 not in victims:
                check(AGAIN in results[0][2], f"rank 0 does not say what to do:\n{results[0][2]}")
        check_goes_on(spec, folder / "study", 4, expected)


def test_ranks_killed_under_the_program_s_own_launcher():
    with Folder() as folder:
        spec = write(folder, trials=16, steps=1500)
        expected = whole(folder, spec, 2)
        for victim in (1, 0):
            process = start(study(spec, folder / "study", "--workers", 2))
            wait_for_teams(folder / "study", [process], team_trials(folder / "study"))
            os.kill(children(process.pid)[victim], signal.SIGKILL)
            code, _, err = finish(process)
            check(code == 4 and f"rank {victim}" in err and "SIGKILL" in err, f"rank {victim} killed: {code}\n{err}")
        process = start(study(spec, folder / "study", "--workers", 2))
        wait_for_teams(folder / "study", [process], team_trials(folder / "study"))
        kill_session(process)
        check_goes_on(spec, folder / "study", 2, expected)


def test_control_c_in_a_team():
    with Folder() as folder:
        spec = write(folder, trials=16, steps=1500)
        expected = whole(folder, spec, 2)
        # To every rank; to the second of a team alone, whose wish ends the team's trial; to the launcher.
        for ranks in ([0, 1], [1]):
            # A trial has just ended, so perhaps no other has begun: then there is none to be saved, and it is done again.
            for _ in range(4):
                job = Job(study(spec, folder / "study"), [0, 0])
                wait_for_teams(folder / "study", job.ranks, team_trials(folder / "study"))
                for rank in ranks:
                    job.ranks[rank].send_signal(signal.SIGINT)
                for rank, (code, _, err) in enumerate(job.finish()):
                    check(code == 130, f"SIGINT to {ranks}, rank {rank}: exit code {code}\n{err}")
                    check(rank != 0 or AGAIN in err, err)
                snapshots = list((folder / "study" / "in_progress").glob("32_*.snapshot"))
                if snapshots:
                    break
            check(snapshots, "the team's trial was not saved")
        process = start(study(spec, folder / "study", "--workers", 2))
        wait_for_teams(folder / "study", [process], team_trials(folder / "study"))
        os.kill(process.pid, signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130 and AGAIN in err, f"{code}\n{err}")
        check_goes_on(spec, folder / "study", 2, expected)


def test_a_host_that_is_cut_off_while_ranks_train_alone_is_named_and_the_others_go_on():
    with Folder() as folder, Hosts(2) as hosts:
        spec = write(folder, trials=48, steps=6000)
        (folder / "store").mkdir()
        arguments = ["--batch-sizes", 4, "--timeout", 4]
        job = Job(study(spec, folder / "store" / "study", *arguments), [0, 1], hosts, folder)
        wait_for(lambda: num_stored(folder / "store" / "study") > 0 or job.ranks[0].poll() is not None, "the first trial")
        hosts.unplug(1)
        begin = time.monotonic()
        (code, _, err), (cut_code, _, cut_err) = job.finish()
        check(time.monotonic() - begin < 60, "long after the time-out")
        check(code == 0 and "rank 1" in err, f"rank 0: exit code {code}\n{err}")
        check(cut_code == 4 and "rank 0" in cut_err, f"rank 1: exit code {cut_code}\n{cut_err}")
        run_ok(study(spec, folder / "whole", "--workers", 1, "--batch-sizes", 4))
        check(stored(folder / "store" / "study") == stored(folder / "whole"), "a lost host changed what is stored")


def test_a_host_that_is_cut_off_in_a_team_is_named():
    with Folder() as folder, Hosts(2) as hosts:
        spec = write(folder, trials=16, steps=1500)
        (folder / "store").mkdir()
        path = folder / "store" / "study"
        job = Job(study(spec, path, "--timeout", 4), [0, 1], hosts, folder)
        wait_for_teams(path, job.ranks)
        hosts.unplug(1)
        begin = time.monotonic()
        results = job.finish()
        check(time.monotonic() - begin < 60, "long after the time-out")
        for rank, (code, _, err) in enumerate(results):
            check(code == 4 and f"rank {1 - rank}" in err, f"rank {rank}: exit code {code}\n{err}")
        check(AGAIN in results[0][2], results[0][2])
        check_goes_on(spec, path, 2, whole(folder, spec, 2))


if __name__ == "__main__":
    main(globals())

"""Several hosts: network name spaces of this machine, joined by a bridge, each with a link of limited bandwidth. Ranks of one name space see each
other as one host and share memory; ranks of two meet over TCP only. Needs root (`ip netns`); nothing of the machine's own network is touched."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from support import COHORT, Folder, TINY, check, finish, main, run_ok, skip, steps_in, wait_for

STEPS = ["--steps", 8, "--json"]
TOKEN = "a token of the tests"   # Without one, ranks of several hosts do not meet.
BOUND = 1e-4   # Relative, of a loss: sums over hosts round in another order than one process does.


def ip(*words, **options):
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True, **options).stdout


class Hosts:
    """`count` hosts 10.77.0.1, .2, ..., or with `network` another prefix; gone at the end, with all that ran in them."""

    def __init__(self, count, megabits=200, network="10.77.0."):
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            skip("network name spaces need root and iproute2")
        self.switch = f"cohort-{os.getpid()}-switch"
        self.names = [f"cohort-{os.getpid()}-{host}" for host in range(count)]
        self.megabits = megabits
        self.network = network

    def __enter__(self):
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
            for host, name in enumerate(self.names):
                self.plug_in(host, name)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            skip(f"no network name spaces here: {' '.join(error.cmd)}: {error.stderr.strip()}")
        return self

    def plug_in(self, host, name):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}", "netns", self.switch)
        ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
        ip("-n", name, "address", "add", f"{self.network}{host + 1}/{64 if ':' in self.network else 24}", "dev", "eth0", *(["nodad"] if ":" in self.network else []))
        ip("-n", name, "link", "set", "eth0", "up")
        limit = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{self.megabits}mbit", "burst", "64k", "latency", "200ms"]
        done = subprocess.run(limit, capture_output=True, text=True)
        self.why_not_limited = done.stderr.strip() if done.returncode else ""     # Some kernels lack it: the link is fast then, and only a test of the limit minds.

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            for pid in self.pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    @staticmethod
    def pids(name):
        return [int(pid) for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()]

    def sent_bytes(self, host):
        return int(json.loads(ip("-n", self.names[host], "-j", "-s", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"])

    def seconds_to_send(self, megabytes):
        """From host 1 to host 0, over TCP; the clock runs from the connection to the last byte's arrival."""
        code = ("import socket, sys, time\nserver = socket.create_server(('10.77.0.1', 29501)); print('listening', flush=True)\nlink, _ = server.accept(); begin = time.monotonic()\n"
                "total = 0\nwhile data := link.recv(1 << 20): total += len(data)\nprint(total, time.monotonic() - begin)")
        receiver = subprocess.Popen(["ip", "netns", "exec", self.names[0], sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            check(receiver.stdout.readline() == "listening\n", "no receiver")
            send = f"import socket\nsocket.create_connection(('10.77.0.1', 29501)).sendall(bytes({megabytes} * 1000000))"
            subprocess.run(["ip", "netns", "exec", self.names[1], sys.executable, "-c", send], check=True, timeout=60)
            received, seconds = receiver.communicate(timeout=60)[0].split()
        finally:
            receiver.kill()
        check(int(received) == megabytes * 1000000, f"{received} bytes arrived")
        return float(seconds)

    def unplug(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def train(self, host_of_rank, arguments):
        """One process a rank, told its place as torchrun does."""
        processes = []
        for rank, host in enumerate(host_of_rank):
            here = [other for other, its_host in enumerate(host_of_rank) if its_host == host]
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(host_of_rank)), LOCAL_RANK=str(here.index(rank)), LOCAL_WORLD_SIZE=str(len(here)),
                               MASTER_ADDR=f"{self.network}1", MASTER_PORT="29500", COHORT_TOKEN=TOKEN)
            command = ["ip", "netns", "exec", self.names[host], COHORT, "train", *map(str, arguments)]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment))
        return processes


def lines_of(processes):
    outputs = [finish(process) for process in processes]
    for rank, (code, _, err) in enumerate(outputs):
        check(code == 0, f"rank {rank}: exit code {code}\n{err}")
    return [json.loads(line) for line in outputs[0][1].splitlines() if line.startswith("{")]


def losses_in(lines):
    return [line["loss"] for line in lines if line["event"] == "step"]


def check_layout(hosts, host_of_rank, backend, carried_by, expected, folder):
    lines = lines_of(hosts.train(host_of_rank, [*TINY, *STEPS, "--backend", backend, "--run", folder / backend]))
    check(lines[0]["backend"] == carried_by, f"--backend {backend} became {lines[0]['backend']}")
    losses = losses_in(lines)
    check(len(losses) == len(expected), losses)
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
    check(worst <= BOUND, f"{backend} on hosts {host_of_rank}: losses differ by {worst}\n{losses}\n{expected}")


def test_a_link_is_as_slow_as_it_is_told_to_be():
    # Measurements between hosts (bench/slow_link.py) and every test with a slow link rest on it.
    seconds = {}
    for megabits in (40, 200):
        with Hosts(2, megabits=megabits) as hosts:
            if hosts.why_not_limited:
                skip(f"this kernel limits no link: {hosts.why_not_limited}")
            seconds[megabits] = hosts.seconds_to_send(4)
            floor = 4 * 8 / megabits
            check(0.9 * floor < seconds[megabits], f"4 MB at {megabits} Mbit/s took {seconds[megabits]:.3f} s, not {floor:.3f}: the link is not limited")
            check(seconds[megabits] < 2 * floor + 1, f"4 MB at {megabits} Mbit/s took {seconds[megabits]:.3f} s, not {floor:.3f}")


def test_two_hosts_train_as_one_process_does():
    with Folder() as folder, Hosts(2) as hosts:
        expected = losses_in(run_ok(["train", *TINY, *STEPS, "--workers", 1, "--run", folder / "reference"]))
        for backend, carried_by in (("gloo", "gloo"), ("shm+gloo", "shm+gloo"), ("auto", "shm+gloo")):
            check_layout(hosts, [0, 0, 1, 1], backend, carried_by, expected, folder)


def test_hosts_with_ipv6_alone():
    with Folder() as folder, Hosts(2, network="fd77::") as hosts:
        expected = losses_in(run_ok(["train", *TINY, *STEPS, "--workers", 1, "--run", folder / "reference"]))
        check_layout(hosts, [0, 1], "gloo", "gloo", expected, folder)
        check_layout(hosts, [0, 0, 1], "shm+gloo", "shm+gloo", expected, folder)


def test_four_hosts_of_unlike_size_with_ranks_in_any_order():
    with Folder() as folder, Hosts(4) as hosts:
        expected = losses_in(run_ok(["train", *TINY, *STEPS, "--workers", 1, "--run", folder / "reference"]))
        check_layout(hosts, [0, 1, 2, 3, 0], "shm+gloo", "shm+gloo", expected, folder)


def test_shared_memory_inside_hosts_halves_what_crosses_between_them():
    # 2 hosts of 2 ranks: a gradient crosses the link once a host and not once a rank (comm/net/composite_transport.h).
    big = ["--model", "fc:hidden=2048", *TINY[2:], "--steps", 60, "--quiet"]     # Enough to outweigh what is measured for the advice at the end.
    with Folder() as folder, Hosts(2) as hosts:
        sent = {}
        for backend in ("gloo", "shm+gloo"):
            before = hosts.sent_bytes(1)
            lines_of(hosts.train([0, 0, 1, 1], [*big, "--backend", backend, "--run", folder / backend]))
            sent[backend] = hosts.sent_bytes(1) - before
        check(0.3 < sent["shm+gloo"] / sent["gloo"] < 0.7, sent)


def endless(hosts, folder, backend, *more):
    processes = hosts.train([0, 0, 1, 1], [*TINY, "--steps", 1000000, "--quiet", "--backend", backend, "--run", folder / backend, *more])
    wait_for(lambda: steps_in(folder / backend) >= 5 or any(process.poll() is not None for process in processes), "five steps")
    return processes


def check_survivors(processes, what):
    for rank in (0, 1):
        code, _, err = finish(processes[rank], timeout=60)
        check(code == 4, f"{what}, rank {rank}: exit code {code}\n{err}")
        check("rank 2" in err or "rank 3" in err or "ranks 2 and 3" in err, f"{what}, rank {rank} names nobody of host 1:\n{err}")


def test_a_killed_host_is_named():
    for backend in ("gloo", "shm+gloo"):
        with Folder() as folder, Hosts(2) as hosts:
            processes = endless(hosts, folder, backend)
            for process in processes[2:]:
                process.kill()
            check_survivors(processes, f"killed, {backend}")
            for process in processes[2:]:
                process.communicate()


def test_a_host_whose_link_is_cut_is_named_after_the_time_out():
    with Folder() as folder, Hosts(2) as hosts:
        processes = endless(hosts, folder, "shm+gloo", "--timeout", 4)
        begin = time.monotonic()
        hosts.unplug(1)
        check_survivors(processes, "cut off")
        check(time.monotonic() - begin < 40, "long after the time-out")
        for process in processes[2:]:
            code, _, err = finish(process, timeout=60)
            check(code == 4, f"exit code {code}\n{err}")


def train_pair(arguments, hidden_from_rank_1=None):
    """Two ranks of this machine; to rank 1 the folder `hidden_from_rank_1` looks empty."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in (0, 1):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden_from_rank_1}" && exec "$0" "$@"'] if hidden_from_rank_1 and rank == 1 else []
        command = [*hide, COHORT, "train", *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment))
    return losses_in(lines_of(processes))


def test_a_rank_that_cannot_read_the_checkpoint_gets_what_compression_left_out():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        skip("mount name spaces need root")
    with Folder() as folder:
        for spec in ("topk:0.05", "powersgd:1"):      # What they leave for later is most of a gradient.
            base = [*TINY, "--layout", f"compress={spec}", "--json"]
            train_pair([*base, "--steps", 6, "--run", folder / spec])
            shutil.copytree(folder / spec, folder / f"{spec}-all")
            resumed = ["--resume", "--steps", 12]
            expected = train_pair([*base, *resumed, "--run", folder / f"{spec}-all"])
            hidden = folder / spec / "checkpoints" / "step-000000006"
            found = train_pair([*base, *resumed, "--run", folder / spec], hidden)
            check(len(expected) == 6 and found == expected, f"{spec}: {found}, with the folder on both ranks {expected}")


def inside(name):
    """What a job may leave in a host: processes, and sockets that listen or are connected."""
    return Hosts.pids(name), [line for line in ip("netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines() if ":" in line and line.split()[3] in ("0A", "01")]


def files_of_jobs():
    """Names in shared memory and the folder for temporary files; those of unit tests that run beside this have other names."""
    return {path for folder in ("/dev/shm", tempfile.gettempdir()) for path in pathlib.Path(folder).iterdir() if "cohort" in path.name and path.is_file()}


def test_nothing_is_left_behind():
    """A job that ends well, one that is killed and one that is told to stop: no process, no socket, no file stays, but for the run's folder."""
    before = files_of_jobs()
    with Folder() as folder, Hosts(2) as hosts:
        names = [*hosts.names, hosts.switch]
        lines_of(hosts.train([0, 0, 1, 1], [*TINY, *STEPS, "--run", folder / "whole"]))
        killed = endless(hosts, folder, "shm+gloo")
        killed[3].kill()
        for process in killed[:3]:
            check(finish(process, timeout=60)[0] == 4, "a survivor")
        killed[3].communicate()
        stopped = endless(hosts, folder, "gloo")
        for process in stopped:
            process.send_signal(signal.SIGTERM)
        for process in stopped:
            code, _, err = finish(process, timeout=60)
            check(code == 130, f"told to stop: exit code {code}\n{err}")
        for name in hosts.names:
            pids, sockets = inside(name)
            check(not pids and not sockets, f"{name}: processes {pids}, sockets {sockets}")
        check({path.name for path in folder.iterdir()} == {"whole", "shm+gloo", "gloo"}, list(folder.iterdir()))
    left = ip("netns", "list")
    check(not any(name in left for name in names), left)
    new = {path for path in files_of_jobs() - before if not path.name.startswith("cohort-test-")}
    check(not new, f"left: {new}")


if __name__ == "__main__":
    main(globals())

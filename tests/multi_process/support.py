"""What the multi-process tests share: running the program, reading its lines, and looking for what it left behind. Standard library only."""
import atexit
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

COHORT = os.environ["COHORT_BIN"]
# Small and quick; learnable, so that a loss that does not fall means something.
TINY = ["--model", "fc:hidden=16", "--data", "synthetic:1x8x8,classes=4,samples=512", "--global-batch", "32", "--lr", "0.05", "--optimizer", "momentum"]

# Who started the tests in the background may have had them ignore these, and with them what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_btl_vader_single_copy_mechanism="none")
# Tests share the cores: threads that wait do so asleep, and the program need not start itself again to have it so.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What programs started here keep for the next ones is not the user's.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cohort-test-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# In another user's build folder programs find no place for their runs.
if not os.access(".", os.W_OK):
    os.chdir(os.environ["XDG_CACHE_HOME"])
# Open MPI leaves the segments of ranks that are killed.
os.environ["OMPI_MCA_btl_vader_backing_directory"] = tempfile.mkdtemp(prefix="cohort-test-mpi-", dir="/dev/shm")
atexit.register(shutil.rmtree, os.environ["OMPI_MCA_btl_vader_backing_directory"], ignore_errors=True)


class Folder:
    """A temporary folder, gone at the end."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="cohort-test-"))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


class Warm:
    """warm_program.cpp: the program with LibTorch loaded, which forks for each command. A test that starts it once only has no use for it."""
    process = socket = None
    num_starts = 0

    @classmethod
    def fits(cls, options):
        """Whether a fork does what a start would: what the loader and LibTorch read of the environment before main() must be as it was."""
        cls.num_starts += 1
        if "COHORT_WARM" not in os.environ or cls.num_starts == 1 or set(options) - {"env", "cwd"}:
            return False
        if cls.socket is None:
            cls.socket, theirs = socket.socketpair()
            cls.environment = {key: value for key, value in os.environ.items() if early(key)}
            cls.process = subprocess.Popen([os.environ["COHORT_WARM"]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                                           env=dict(os.environ, COHORT_WARM_SOCKET=str(theirs.fileno())), pass_fds=[theirs.fileno()])
            theirs.close()
            atexit.register(cls.end)
        return {key: value for key, value in options.get("env", os.environ).items() if early(key)} == cls.environment

    @classmethod
    def end(cls):
        cls.socket.close()
        cls.process.wait()


def early(name):
    """Whether that variable may be read before main()."""
    return name.startswith(("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH", "PYTORCH", "MALLOC_", "GLIBC_", "CUDA"))


class WarmProcess(subprocess.Popen):
    """As Popen, of a process that is forked by Warm and then becomes a child of this one."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite,
                       errread, errwrite, *_):
        words = [str(cwd or os.getcwd()), str(len(args)), *map(str, args), *(f"{key}={value}" for key, value in (os.environ if env is None else env).items())]
        payload = b"".join(os.fsencode(word) + b"\0" for word in words)
        become_subreaper = 36
        ctypes.CDLL(None).prctl(become_subreaper, 1, 0, 0, 0)
        socket.send_fds(Warm.socket, [len(payload).to_bytes(8, "little")], [p2cread, c2pwrite, errwrite])
        Warm.socket.sendall(payload)
        answer = Warm.socket.recv(8, socket.MSG_WAITALL)
        ctypes.CDLL(None).prctl(become_subreaper, 0, 0, 0, 0)  # Orphans of the program are nobody's here.
        check(len(answer) == 8, f"{os.environ['COHORT_WARM']} ended with {Warm.process.wait() if not answer else answer}")
        self.pid = int.from_bytes(answer, "little", signed=True)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def start(arguments, from_disk=False, **options):
    """The program in a process group of its own, so that leftovers can be found. `from_disk`: not by a fork, for tests of what happens before main()."""
    if not from_disk and Warm.fits(options):
        process = WarmProcess([COHORT, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    else:
        process = subprocess.Popen([COHORT, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)
    atexit.register(end_session, process)
    return process


def end_session(process):
    """Of a test that failed, which did not wait for it."""
    for pid in session_members(process.pid) if process.returncode is None else ():
        os.kill(pid, signal.SIGKILL)


def finish(process, timeout=240):
    """Waits; returns (exit code, stdout, stderr). Nothing of its session may be left."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=30)
        raise AssertionError(f"{process.args}: no end within {timeout} s; until then it said\n{out[-2000:]}\n{err[-4000:]}") from None
    check(not session_members(process.pid), f"processes left behind: {session_members(process.pid)}\n{err}")
    return process.returncode, out, err


def run(arguments, timeout=240, **options):
    return finish(start(arguments, **options), timeout)


def run_ok(arguments, **options):
    code, out, err = run(arguments, **options)
    check(code == 0, f"{arguments}: exit code {code}\n{err}")
    return [json.loads(line) for line in out.splitlines()] if "--json" in arguments else out


def session_members(session):
    """Living processes of a session (zombies do not count: they wait for their parent only)."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def is_caught(pid, number=signal.SIGINT):
    fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return int(fields["SigCgt"], 16) >> (number - 1) & 1


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, what, timeout=60):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


def kill_session(process):
    """SIGKILL to all of it at once; returns when the last one is gone."""
    for pid in session_members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()
    wait_for(lambda: not session_members(process.pid), "killed processes end")


def steps_in(run_folder):
    """Number of the last step line of a run's metrics, 0 for none."""
    path = pathlib.Path(run_folder) / "metrics.jsonl"
    last = 0
    if path.exists():
        for line in path.read_text().splitlines():
            match = re.match(r'\{"event":"step","step":(\d+)', line)
            last = int(match.group(1)) if match else last
    return last


def checkpoint_of(run_folder, name="latest"):
    """The step folder that RUN/checkpoints/latest, or best, names."""
    folder = pathlib.Path(run_folder) / "checkpoints"
    return folder / (folder / name).read_text().strip()


def tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file, read without any library."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], tuple(entry["shape"]), raw[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]) for name, entry in header.items()}


def tiny_study(batch_sizes, more_of_search):
    """The specification of a study that takes seconds."""
    return f"""[workload]
name = "tiny"
data = "synthetic:1x8x8,classes=4,samples=512"
model = "fc:hidden=16"
optimizer = "momentum"
dataset_name = "synthetic"
model_name = "fc"

[study]
goals = ["val_error<0.2"]
batch_sizes = {batch_sizes}
trials = 3
steps = 400
seed = 1

[search]
learning_rate = {{ type = "double", scale = "log", min = 0.01, max = 0.1 }}
{more_of_search}"""


def write_pictures(folder, count, side, num_classes=10):
    """IDX files as --data mnist:FOLDER reads them. Class k is bright in the k-th band of its rows, with noise, so there is something to learn."""
    import random
    noise = random.Random(1)
    folder.mkdir()
    labels = bytes(i % num_classes for i in range(count))
    pixels = bytes(noise.randrange(90) + (150 if row * num_classes // side == label else 0) for label in labels for row in range(side) for _ in range(side))
    (folder / "train-images-idx3-ubyte").write_bytes(b"".join(n.to_bytes(4, "big") for n in (0x803, count, side, side)) + pixels)
    (folder / "train-labels-idx1-ubyte").write_bytes(b"".join(n.to_bytes(4, "big") for n in (0x801, count)) + labels)


def exported(run_folder, folder):
    target = folder / (pathlib.Path(run_folder).name + ".safetensors")
    run_ok(["checkpoint", "export", run_folder, "--out", target])
    return tensors(target)


def floats(raw):
    import array
    values = array.array("f")
    values.frombytes(raw)
    return values


def largest_difference(a, b):
    check(a.keys() == b.keys(), f"different tensors: {a.keys() ^ b.keys()}")
    worst = 0.0
    for name in a:
        if a[name][0] != "F32":
            continue
        x, y = floats(a[name][2]), floats(b[name][2])
        scale = max((abs(v) for v in x), default=1) or 1
        worst = max(worst, max((abs(u - v) for u, v in zip(x, y)), default=0) / scale)
    return worst


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def skip(reason, also_in_ci=False):
    """This machine cannot run the test: ctest reports it as skipped, scripts/test prints the reason. With CI=true in the environment that is a failure: a
    machine of continuous integration has all but what `also_in_ci` marks."""
    print("skipped:", reason, flush=True)
    if os.environ.get("CI") == "true" and not also_in_ci:
        print("CI=true: this must run here")
        sys.exit(1)
    sys.exit(77)


def mpi_launchers():
    """The mpirun of Open MPI and that of MPICH, those that are here (continuous integration has both); with none the test is skipped."""
    found = [name for name in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(name)]
    if len(found) < (2 if os.environ.get("CI") == "true" else 1):
        skip(f"of Open MPI and MPICH here is {', '.join(found) or 'neither'}")
    return found


def needs_own_process_ids():
    """Skips the test where no program can be started in a process-id space of its own."""
    tried = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    if tried.returncode:
        skip(f"no process-id space of its own: {tried.stderr.strip()}")


def main(namespace):
    """Runs every function test_* of a module, or those named on the command line."""
    names = sys.argv[1:] or [name for name in namespace if name.startswith("test_")]
    shm_before = set(os.listdir("/dev/shm"))
    for name in names:
        start_time, start_usage = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        namespace[name]()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = usage.ru_utime + usage.ru_stime - start_usage.ru_utime - start_usage.ru_stime
        print(f"ok {name} ({time.monotonic() - start_time:.1f} s, {processor:.1f} s of a processor)", flush=True)
    left = {name for name in set(os.listdir("/dev/shm")) - shm_before if "cohort" in name and os.path.isfile(f"/dev/shm/{name}")}  # Folders are of unit tests that run beside this.
    check(not left, f"left in /dev/shm: {left}")

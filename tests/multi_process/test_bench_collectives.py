"""`cohort bench collectives`: every result is checked by the program itself; here, that each line comes, and that deaths are noticed and named."""
import json
import shutil

from support import check, main, run, run_ok, skip

QUICK = ["bench", "collectives", "--rounds", 1, "--json"]
OWN = "shm,shm-private,gloo,pytorch-gloo"


def lines_of(*arguments):
    lines = run_ok([*QUICK, *arguments])
    return {(line["op"], line["backend"], line["workers"], line["bytes"]): line["seconds"] for line in lines if "op" in line}, lines


def test_every_backend_operation_and_size_has_a_line():
    times, lines = lines_of("--worker-counts", "3", "--sizes", "4,12KiB", "--ops", "allreduce,reducescatter,allgather,broadcast,barrier", "--backends", OWN)
    expected = set()
    for backend in OWN.split(","):
        expected |= {(op, backend, 3, size) for op in ("allreduce", "broadcast") for size in (4, 12288)}
        expected |= {(op, backend, 3, 12288) for op in ("reducescatter", "allgather")}  # 4 bytes cannot be cut.
        expected.add(("barrier", backend, 3, 0))
    check(set(times) == expected, f"missing {expected - set(times)}, unexpected {set(times) - expected}")
    check(all(0 < seconds < 60 for seconds in times.values()), times)
    memory = [line for line in lines if line.get("event") == "memory"]
    check(len(memory) == 1 and memory[0]["workers"] == 3 and memory[0]["bytes_per_second"] > 1e8, memory)


def test_mpi_libraries_as_peers():
    found = [name for name, program in (("open-mpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich")) if shutil.which(program)]
    if len(found) < 2:
        skip(f"of Open MPI and MPICH here is {', '.join(found) or 'neither'}")
    times, _ = lines_of("--workers", 2, "--sizes", "8,16KiB", "--ops", "allreduce,reducescatter,allgather,broadcast", "--backends", ",".join(found))
    expected = {(op, name, 2, size) for op in ("allreduce", "reducescatter", "allgather", "broadcast") for name in found for size in (8, 16384)}
    check(set(times) == expected, f"missing {expected - set(times)}, unexpected {set(times) - expected}")


def test_a_table_for_people():
    code, out, err = run(["bench", "collectives", "--workers", 2, "--rounds", 1, "--sizes", "4,16MiB", "--backends", "shm"])
    check(code == 0 and "allreduce, 2 workers" in out and "shm reaches" in out and "GB/s" in out, out + err)


def test_killed_and_stopped_peers_are_noticed_and_named():
    code, out, err = run(["bench", "collectives", "--faults", 3, "--timeout", 1, "--json"])
    check(code == 0, err)
    killed, stopped = [json.loads(line) for line in out.splitlines()]
    check((killed["kind"], killed["trials"], killed["named"]) == ("killed", 3, 3), killed)
    check((stopped["kind"], stopped["trials"], stopped["named"]) == ("stopped", 3, 3), stopped)
    check(stopped["median_seconds"] > 0.9, stopped)  # Not before its time-out; how soon a killed one is noticed is a benchmark's business.


def test_what_it_refuses():
    for arguments, text in ((["--sizes", "3"], "'3': expected a multiple of 4 bytes"), (["--sizes", "8GiB"], "up to 4GiB"), (["--ops", "alreduce"], "did you mean 'allreduce'?"),
                            (["--backends", "nccl"], "no 'nccl'"), (["--worker-counts", "1"], "expected 2 to 64"), (["--workers", "1"], "at least 2"), (["--faults", "1"], "does not read --rounds")):
        code, out, err = run([*QUICK, *arguments])
        check(code == 2 and text in err and not out, f"{arguments}: exit code {code}: {err}")
    code, out, err = run(["bench", "collectives", "--faults", "0"])
    check(code == 2 and "--faults 0" in err and not out, f"exit code {code}: {err}")


if __name__ == "__main__":
    main(globals())

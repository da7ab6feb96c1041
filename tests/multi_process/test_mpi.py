"""MPI as a network: real mpirun of Open MPI and of MPICH. Both libraries are loaded at run time, so one program serves both."""
import json
import os
import pathlib
import subprocess

from support import COHORT, Folder, TINY, check, mpi_launchers, run, run_ok

ORACLE = pathlib.Path(COHORT).parent / "transport_oracle"
STEPS = ["--steps", 12, "--json"]


def under(launcher, ranks, command, timeout=120):
    return subprocess.run([launcher, "-n", str(ranks), *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)


def oracle(launcher, ranks, part):
    return under(launcher, ranks, [ORACLE, "mpi", part])


def test_every_operation_gives_the_answer_of_the_oracle():
    for launcher in mpi_launchers():
        for ranks in (3, 4) if "openmpi" in launcher else (2, 3):     # One rank alone: groups, below.
            result = oracle(launcher, ranks, "oracle")
            check(result.returncode == 0 and "calls right over" in result.stdout, f"{launcher} -n {ranks}: {result.returncode}\n{result.stdout}\n{result.stderr}")
            check(("Open MPI" if "openmpi" in launcher else "MPICH") in result.stdout, f"{launcher}: {result.stdout}")


def test_groups_beside_each_other():
    for launcher in mpi_launchers():
        result = oracle(launcher, 3, "groups")
        check(result.returncode == 0, f"{launcher}: {result.returncode}\n{result.stderr}")


def test_mismatches_end_in_an_error_on_every_rank():
    for launcher in mpi_launchers():
        result = oracle(launcher, 3, "mismatch")
        check(result.returncode == 0 and result.stdout.count("as expected") == 3, f"{launcher}: {result.returncode}\n{result.stdout}\n{result.stderr}")
        result = oracle(launcher, 2, "message")
        check(result.stdout.count("as expected") == 2, f"{launcher}: {result.returncode}\n{result.stdout}\n{result.stderr}")


def test_a_rank_that_does_not_come_is_named_within_the_time_out():
    for launcher in mpi_launchers():
        for part in ("leave", "absent"):
            result = oracle(launcher, 2, part)
            check("as expected" in result.stdout, f"{launcher} {part}: {result.returncode}\n{result.stdout}\n{result.stderr}")


def test_without_mpirun_a_sentence_says_what_to_do():
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "PMIX"))}
    result = subprocess.run([str(ORACLE), "mpi", "oracle"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=clean)
    check(result.returncode == 1 and "mpirun -n 4" in result.stderr and "apt-get install" in result.stderr, result.stderr)


def test_training_over_mpi_and_over_shared_memory_with_mpi():
    with Folder() as folder:
        lines = run_ok(["train", *TINY, *STEPS, "--workers", 2, "--run", folder / "reference"])
        expected = [line["loss"] for line in lines if line["event"] == "step"]
        for launcher in mpi_launchers():
            for backend in ("mpi", "shm+mpi"):
                name = f"{launcher}-{backend}"
                result = under(launcher, 2, [COHORT, "train", *TINY, *STEPS, "--backend", backend, "--run", folder / name])
                check(result.returncode == 0, f"{name}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
                found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
                carried_by = backend if backend == "mpi" else "shm"     # On one host nothing is left for the network.
                check(found[0]["backend"] == carried_by, found[0])
                check([line["loss"] for line in found if line["event"] == "step"] == expected, f"{name}: other losses")


def test_a_killed_rank_ends_the_training():
    for launcher in mpi_launchers():
        with Folder() as folder:
            result = under(launcher, 2, [COHORT, "train", *TINY, "--steps", 100000, "--quiet", "--backend", "mpi", "--inject", "kill:1:9", "--run", folder / "run"], timeout=60)
            check(result.returncode != 0, f"{launcher}: {result.returncode} {result.stderr}")


def test_backend_mpi_without_mpirun_is_refused():
    with Folder() as folder:
        code, _, err = run(["train", *TINY, "--steps", 3, "--workers", 2, "--backend", "mpi", "--run", folder / "run"])
        check(code in (2, 4) and "mpirun" in err, f"{code} {err}")


if __name__ == "__main__":
    from support import main
    main(globals())

"""The files for clusters (packaging/cluster): what operators and Slurm ask of them, and their commands run here as they would start them."""
import copy
import os
import pathlib
import socket
import subprocess

from support import COHORT, TINY, Folder, check, main, skip, steps_in

STEPS = 40
CLUSTER = pathlib.Path(__file__).parents[2] / "packaging/cluster"


def documents(name):
    try:
        import yaml
    except ImportError:
        skip("no PyYAML here")
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def shortened(words, folder):
    """The command with this program, small data, and a run folder here; what follows `train` stays otherwise as it is."""
    words = [COHORT if word == "cohort" else str(folder / "job") if word == "/runs/job" else word for word in words]
    at = words.index("train")
    check(words[-1] == "--resume=auto", f"what restarts must go on: {words}")
    kept = [pair for pair in zip(words[at + 1:-1:2], words[at + 2:-1:2]) if pair[0] not in ("--model", "--data")]
    check(("--run", str(folder / "job")) in kept, words)
    return [*words[: at + 1], *map(str, TINY), "--steps", str(STEPS), *(word for pair in kept for word in pair), "--checkpoint-every", "4", words[-1]]


def containers(replica):
    """What Kubernetes asks of a pod, and the volumes that its containers name."""
    spec = replica["template"]["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        check(isinstance(container["name"], str) and isinstance(container["image"], str), container)
        check(all(isinstance(word, str) for word in [*container.get("args", []), *container.get("command", [])]), f"words must be strings: {container}")
        check({mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, container)
        check(all("value" not in variable or isinstance(variable["value"], str) for variable in container.get("env", [])), container)
    return spec["containers"]


def test_a_pytorchjob_is_what_the_operator_reads_and_its_pods_train_together():
    (job,) = documents("pytorchjob.yaml")
    check((job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob"), job)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    check(set(replicas) == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1, replicas)
    pods = []
    for kind in ("Master", "Worker"):
        check(replicas[kind]["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode"), kind)
        found = [container for container in containers(replicas[kind]) if container["name"] == "pytorch"]
        check(len(found) == 1, "the operator sets its variables in a container of the name pytorch")
        pods += [copy.deepcopy(found[0]) for _ in range(replicas[kind]["replicas"])]
    with Folder() as folder:

        def start_pods(*more):
            port, ranks = free_port(), []
            for rank, pod in enumerate(pods):
                own = {variable["name"]: variable.get("value", "0123456789abcdef0123") for variable in pod["env"]}
                given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(len(pods))}
                ranks.append(subprocess.Popen([*shortened(["cohort", *pod["args"]], folder), *more], env={**os.environ, **given, **own}, stderr=subprocess.PIPE, text=True))
            errors = [rank.communicate(timeout=120)[1] for rank in ranks]
            return [rank.returncode for rank in ranks], errors

        # A pod that is killed takes the others with it; the operator starts all of them again, with the same words.
        codes, errors = start_pods("--inject", "kill:1:9", "--timeout", "5")
        check(codes[1] == -9 and all(code == 4 for code in codes[:1] + codes[2:]), (codes, errors))
        codes, errors = start_pods()
        check(codes == [0] * len(pods) and "going on after step 8" in errors[0], (codes, errors))
        check((folder / "job/report.html").exists() and steps_in(folder / "job") == STEPS, errors)
        codes, errors = start_pods()
        check(codes == [0] * len(pods) and f"is done, after {STEPS} steps" in errors[0], (codes, errors))


def test_an_mpijob_is_what_the_operator_reads_and_its_command_trains():
    (job,) = documents("mpijob.yaml")
    check((job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob"), job)
    replicas = job["spec"]["mpiReplicaSpecs"]
    check(set(replicas) == {"Launcher", "Worker"} and replicas["Launcher"]["replicas"] == 1, replicas)
    containers(replicas["Worker"])
    command = containers(replicas["Launcher"])[0]["command"]
    check(int(command[command.index("-n") + 1]) == job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"], "a rank a slot")
    check(f"MASTER_ADDR={job['metadata']['name']}-worker-0.{job['metadata']['name']}" in command, "the operator names its pods so")
    with Folder() as folder:
        at = command.index("cohort")
        words = [*command[:at], *shortened(command[at:], folder)]
        words = ["MASTER_ADDR=127.0.0.1" if word.startswith("MASTER_ADDR=") else f"MASTER_PORT={free_port()}" if word.startswith("MASTER_PORT=") else word for word in words]
        words[1:1] = ["--oversubscribe"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_ALLOW")}
        for steps in ("first", "again"):
            done = subprocess.run(words, env={**env, "COHORT_TOKEN": "0123456789abcdef0123"}, capture_output=True, text=True, timeout=120)
            check(done.returncode == 0 and (folder / "job/report.html").exists(), (steps, done.stderr))
        check("is done, after" in done.stderr, done.stderr)


def test_the_batch_script_of_slurm_trains_and_goes_on():
    """With a srun and a scontrol that do what Slurm's would on one node: two nodes' worth of ranks with their variables."""
    with Folder() as folder:
        (folder / "srun").write_text("""#!/bin/bash
[[ $1 == --kill-on-bad-exit=1 ]] || exit 9
shift
pids=()
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_LOCALID=$rank SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_NUM_NODES=1 "$@" & pids+=($!)
done
code=0
for pid in ${pids[@]}; do wait $pid || code=$?; done
exit $code
""")
        (folder / "scontrol").write_text("#!/bin/bash\n[[ $1 == show && $2 == hostnames && $3 ]] && echo 127.0.0.1\n")
        (folder / "cohort").symlink_to(COHORT)
        for program in ("srun", "scontrol"):
            (folder / program).chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": str(free_port()), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "1",
               "RUN": str(folder / "run"), "MODEL": "fc:hidden=16", "DATA": "synthetic:1x8x8,classes=4,samples=256"}
        for steps in ("first", "again"):
            done = subprocess.run(["bash", CLUSTER / "slurm.sbatch"], env=env, capture_output=True, text=True, timeout=120)
            check(done.returncode == 0 and (folder / "run/report.html").exists(), (steps, done.stderr))
        check("is done, after" in done.stderr, done.stderr)


if __name__ == "__main__":
    main(globals())

"""Ranks that meet at an address need the job's token: with the same one they train, without it or with another they are turned away in one line."""
import json
import os
import secrets
import socket
import stat

from support import Folder, TINY, check, finish, main, run_ok, start


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ranks(folder, tokens, address="127.0.0.1", local_size=2, port=None):
    """One process a rank, started the last first; `tokens`: what each has in its environment."""
    port = port or free_port()
    processes = []
    for rank in reversed(range(len(tokens))):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_TOKEN")}
        environment.update(RANK=str(rank), WORLD_SIZE=str(len(tokens)), LOCAL_RANK=str(rank % local_size), LOCAL_WORLD_SIZE=str(local_size),
                           MASTER_ADDR=address, MASTER_PORT=str(port), **tokens[rank])
        arguments = ["train", *TINY, "--steps", 6, "--json", "--timeout", 8, "--run", folder / f"run-{port}"]
        processes.append(start(arguments, env=environment))
    return [finish(process) for process in reversed(processes)]


def losses(out):
    return [json.loads(line)["loss"] for line in out.splitlines() if '"event":"step"' in line]


def one_line(result, words):
    code, _, err = result
    lines = err.strip().splitlines()
    check(code == 4, f"exit code {code}, not 4\n{err}")
    check(len(lines) == 1 and words in lines[0], f"one line with '{words}' expected:\n{err}")


def test_the_same_token_from_a_variable_or_a_private_file():
    with Folder() as folder:
        expected = [line["loss"] for line in run_ok(["train", *TINY, "--steps", 6, "--json", "--workers", 2, "--run", folder / "reference"]) if line["event"] == "step"]
        token = secrets.token_hex(16)
        file = folder / "token"
        file.write_text(token + "\n")
        file.chmod(stat.S_IRUSR | stat.S_IWUSR)
        results = ranks(folder, [{"COHORT_TOKEN": token}, {"COHORT_TOKEN_FILE": str(file)}])
        for code, _, err in results:
            check(code == 0, err)
        check(losses(results[0][1]) == expected, "other losses")


def test_another_token_or_none_is_turned_away():
    with Folder() as folder:
        first, second = secrets.token_hex(16), secrets.token_hex(16)
        result = ranks(folder, [{"COHORT_TOKEN": first}, {"COHORT_TOKEN": second}])
        one_line(result[1], "the token of rank 1 is not that of the job at 127.0.0.1:")
        check(result[0][0] == 4 and "one was turned away because its token is another than this job's" in result[0][2].splitlines()[-1], result[0][2])
        result = ranks(folder, [{"COHORT_TOKEN": first}, {}])
        one_line(result[1], "rank 1 has no token")
        check("one was turned away" in result[0][2], result[0][2])
        result = ranks(folder, [{}, {"COHORT_TOKEN": first}])
        one_line(result[1], "has none; give all ranks one secret")
        check("one was turned away because it has a token and this job has none" in result[0][2].splitlines()[-1], result[0][2])
        for _, out, err in result:
            check(first not in out + err and second not in out + err, "a token is shown")


def test_several_hosts_do_not_meet_without_a_token():
    with Folder() as folder:
        for result in ranks(folder, [{}, {}], address="192.0.2.1", local_size=1, port=29500):
            one_line(result, "meet at 192.0.2.1:29500, where anybody may connect, and have no token")


def test_a_token_that_others_can_read_or_guess_is_refused():
    with Folder() as folder:
        file = folder / "token"
        file.write_text(secrets.token_hex(16))
        file.chmod(0o644)
        for result in ranks(folder, [{"COHORT_TOKEN_FILE": str(file)}] * 2):
            one_line(result, "chmod 600")
        for result in ranks(folder, [{"COHORT_TOKEN": "12345"}] * 2):
            one_line(result, "has 5 characters, which can be guessed")


if __name__ == "__main__":
    main(globals())

"""sync=async:overlap and stale:K:overlap: a worker that shares no memory with rank 0 has a second ticket's weights on their way while it computes; nothing is lost when it dies."""
import os
import signal
import threading

from support import Folder, TINY, check, finish, main, needs_own_process_ids, run, session_members, start, wait_for
from test_async import record, samples_of
from test_join import SECRET, listening
from test_join_proxy import joins_from_elsewhere


def train(folder, sync, *options):
    """The account of a training of rank 0, slow, and of a worker that comes from elsewhere, killed on the way."""
    process = start(["train", *TINY, "--threads", 1, "--quiet", "--run", folder / "run", "--steps", 400, "--workers", 1, "--layout", f"sync={sync}", "--inject", "slow:0:30", "--listen", "127.0.0.1:0", *options], env=SECRET)
    where, errors = listening(process), []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    reader.start()
    joiner = joins_from_elsewhere(where)
    while "first push" not in (line := joiner.stderr.readline()):
        check(line != "", "the worker ended before it worked")
    os.killpg(joiner.pid, signal.SIGKILL)
    wait_for(lambda: not session_members(joiner.pid), "all of its processes are gone")
    finish(joiner)
    wait_for(lambda: any("is lost after" in line for line in errors), "the training names it")
    other = joins_from_elsewhere(where)
    process.wait(timeout=240)
    reader.join(timeout=10)
    finish(other)
    check(process.returncode == 0, f"exit code {process.returncode}: {errors}")
    return record(folder / "run", "async"), "".join(errors)


def test_a_second_ticket_is_on_its_way():
    needs_own_process_ids()
    medians = {}
    for sync in ("async", "async:overlap", "stale:4:overlap"):
        with Folder() as folder:
            account, errors = train(folder, sync)
            check(account["samples"] == samples_of(folder / "run", 400), f"{sync}: {account}")
            its = account["workers"][2]
            check(its["pushes"] > account["pushes"] / 2, f"{sync}: the fast worker made {its['pushes']} of {account['pushes']}")
            # It may have had nothing in hand just then, or, with overlap, two tickets; what it had is counted and said.
            check(account["lost"] <= (1 if sync == "async" else 2) and ("its ticket goes to another" in errors) == (account["lost"] > 0), f"{sync}: {account['lost']} lost: {errors}")
            check(sync != "stale:4:overlap" or account["most_late_steps"] <= 6, f"{account}")
            medians[sync] = account["staleness_median"]
    check(medians["async"] < medians["async:overlap"] and medians["async:overlap"] >= 1, f"{medians}")  # Its own push before came later than the weights.


def test_where_nothing_travels_it_is_refused():
    for options, words in ((["--workers", 2, "--layout", "sync=async:overlap"], "on one host"), (["--layout", "sync=stale:2:overlap", "--virtual", "workers=2"], "--virtual"),
                           (["--workers", 2, "--layout", "sync=stale:0:overlap", "--listen", "127.0.0.1:0"], "use stale:1"), (["--workers", 2, "--layout", "sync=queue:overlap"], "is none of"),
                           (["--workers", 2, "--layout", "sync=async:overlap,compress=int8", "--remedy", "drop:2", "--listen", "127.0.0.1:0"], "use one of the two")):
        code, out, err = run(["train", *TINY, "--steps", 3, *options], env=SECRET)
        check(code == 2 and words in err and len(err.splitlines()) == 1 and not out, f"{options}: {code} {err}")


if __name__ == "__main__":
    main(globals())

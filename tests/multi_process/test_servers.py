"""sync=async:servers=S and stale:K:servers=S: several servers divide the model. The bits of one server, on one host and between hosts; workers that die, join and leave; a server that dies; what is refused."""
import os
import signal
import subprocess
import time

import test_hosts
from support import COHORT, Folder, check, children, exported, finish, main, mpi_launchers, needs_own_process_ids, run, run_ok, start, wait_for
from test_async import SGD, TINY, begin, ranks_of, record, said, samples_of, train
from test_hosts import Hosts, lines_of
from test_join import SECRET, listening, read_until
from test_join_proxy import joins_from_elsewhere


def test_several_servers_make_the_bits_of_one():
    """stale:0 makes the same bits each time: on any number of servers, and resumed, the same; the norm that clips is that of the whole gradient."""
    with Folder() as folder:
        for name, common in (("momentum", ["--clip-norm", 0.5]), ("adamw", ["--model", "resnet8:width=4", "--data", "synthetic:1x8x8,classes=4,samples=64"])):
            common = ["--steps", 20, "--optimizer", name, *common, "--workers", 3, "--eval-every", 7]
            one, _ = train(folder, f"{name}-1", *common, "--layout", "sync=stale:0")
            for servers in (2, 3) if name == "momentum" else (2,):
                several, text = train(folder, f"{name}-{servers}", *common, "--layout", f"sync=stale:0:servers={servers}")
                check(several == one, f"{servers} servers make other bits than one with {name}")
                evaluations = [[line for line in (folder / f"{name}-{count}" / "metrics.jsonl").read_text().splitlines() if '"event":"eval"' in line] for count in (1, servers)]
                check(evaluations[0] == evaluations[1] and len(evaluations[0]) == 3, f"other evaluations: {evaluations}")
                accounts = [record(folder / f"{name}-{count}", "async") for count in (1, servers)]
                check(accounts[0]["bytes_to_workers"] == accounts[1]["bytes_to_workers"], f"{accounts}")
                check(f"divided over {servers} servers" in text, text)
            half, whole = f"{name}-half", f"{name}-2"
            _, text = train(folder, half, *common, "--steps", 11, "--checkpoint-every", 11, "--layout", "sync=stale:0:servers=2")
            said(["train", "--run", folder / half, "--resume", "--quiet", "--steps", 20])
            check(exported(folder / half, folder) == exported(folder / whole, folder), f"a resumed run of two servers has other bits with {name}")
        _, err = said(["train", "--run", folder / half, "--resume", "--quiet", "--steps", 24, "--layout", "sync=async"])
        check("all workers begin anew" in err, err)
        said(["train", "--run", folder / half, "--resume", "--quiet", "--steps", 28, "--workers", 2, "--layout", "dp=2"])


def test_verify_compares_them_with_one_process():
    run_ok(["verify", *TINY, *SGD, "--steps", 2, "--layout", "dp=3,sync=stale:0:servers=3"])


def test_it_trains_with_remedies_compression_and_lateness():
    with Folder() as folder:
        for name, options in (("plain", []), ("lookahead", ["--remedy", "lookahead", "--clip-norm", 1]), ("compensate", ["--remedy", "compensate"]), ("drop", ["--remedy", "drop:1"])):
            for layout in ("sync=async:servers=2", "sync=stale:2:servers=3,compress=int8"):
                where = f"{name}-{layout[5:10]}"
                train(folder, where, "--steps", 96, "--workers", 3, "--eval-every", 96, "--layout", layout, *options)
                account = record(folder / where, "async")
                check(account["samples"] == samples_of(folder / where, 96) == sum(worker["samples"] for worker in account["workers"]), f"{where}: {account}")
                check(record(folder / where, "eval")["val_loss"] < 0.9, f"{where}: {record(folder / where, 'eval')}")


def test_a_worker_is_lost_and_one_that_serves():
    with Folder() as folder:
        _, err = said(["train", *TINY, "--quiet", "--run", folder / "k", "--steps", 60, "--workers", 3, "--layout", "sync=async:servers=2", "--inject", "kill:2:5,slow:0:3,slow:1:3"])
        check("worker 2 is lost after 5 pushes" in err and "its ticket goes to another" in err, err)
        account = record(folder / "k", "async")
        check(account["samples"] == samples_of(folder / "k", 60) and account["deaths"] == 1, f"{account}")
        for how in (signal.SIGKILL, signal.SIGSTOP):
            name = f"s{how}"
            process = begin(folder, name, "--layout", "sync=async:servers=2", "--steps", 1000000, "--checkpoint-every", 20, "--inject", "slow:0:3,slow:1:3,slow:2:3")
            wait_for(lambda: (folder / name / "checkpoints" / "latest").exists(), "a checkpoint")
            os.kill(ranks_of(process)[1], how)
            stopped = time.monotonic()
            code, _, err = finish(process)
            words = "rank 1 (pid" if how == signal.SIGKILL else "rank 1, which serves a part of the model, is "
            check(code == 4 and words in err and (how == signal.SIGKILL or "go on with --resume" in err), f"{how}: {code} {err}")
            check(time.monotonic() - stopped < 15, f"it took {time.monotonic() - stopped:.1f} s to end")
            run_ok(["checkpoint", "verify", folder / name])
            step = record(folder / name, "checkpoint")["step"] if how == signal.SIGKILL else None
            if step:
                said(["train", "--run", folder / name, "--resume", "--quiet", "--steps", step + 10, "--inject", "slow:0:2"])


def test_a_worker_joins_from_elsewhere_and_leaves():
    needs_own_process_ids()
    for sync in ("async:servers=2", "async:servers=2:overlap"):
        with Folder() as folder:
            process = start(["train", *TINY, "--quiet", "--run", folder / "j", "--steps", 1000000, "--log-every", 1, "--workers", 2, "--layout", f"sync={sync}", "--inject", "slow:0:8,slow:1:8", "--listen", "127.0.0.1:0"], env=SECRET)
            where = listening(process)
            joiner = joins_from_elsewhere(where)
            read_until(joiner, "first push")
            wait_for(lambda: children(joiner.pid), "its process")
            os.kill(children(joiner.pid)[0], signal.SIGINT)
            code, _, err = finish(joiner)
            check(code == 130, f"{sync}: {code} {err}")
            check("worker 2 has left after" in read_until(process, "has left")[-1], "it did not leave")
            other = joins_from_elsewhere(where)
            read_until(other, "first push")
            process.send_signal(signal.SIGINT)
            code, _, err = finish(process)
            check(code == 130, f"{sync}: {code} {err}")
            finish(other)
            account = record(folder / "j", "async")
            check(account["left"] == 1 and account["deaths"] == 0 and len(account["workers"]) == 4, f"{sync}: {account}")
            step = record(folder / "j", "checkpoint")["step"]
            # A step is over with the ticket that makes its samples up, of which some may be the next one's: 16 are the most of a ticket.
            check(0 <= account["samples"] - samples_of(folder / "j", step) < 16, f"{sync}: {account} at {step}")


def test_each_host_serves_a_part():
    with Folder() as folder, Hosts(2) as hosts:
        apart = folder / "apart"
        apart.write_text(f'#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc {COHORT} "$@"\n')  # Hosts that see each other's processes would share memory.
        apart.chmod(0o755)
        test_hosts.COHORT = str(apart)
        common = [*TINY, "--quiet", "--json", "--steps", 20]
        for servers in (1, 2):
            lines_of(hosts.train([0, 0, 1, 1], [*common, "--layout", f"dp=4,sync=stale:0:servers={servers}", "--run", folder / f"s{servers}"]))
        check(exported(folder / "s1", folder) == exported(folder / "s2", folder), "two hosts that serve a part each make other bits than one that serves all")
        lines_of(hosts.train([0, 0, 1, 1], [*common, "--layout", "dp=4,sync=async:servers=2:overlap", "--run", folder / "o"]))
        account = record(folder / "o", "async")
        check(account["samples"] == samples_of(folder / "o", 20) and account["lost"] == 0, f"{account}")


def test_a_host_that_listens_at_all_its_addresses_is_joined_from_another():
    with Folder() as folder, Hosts(2) as hosts:
        def on(host, *arguments):
            return subprocess.Popen(["ip", "netns", "exec", hosts.names[host], COHORT, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SECRET, start_new_session=True)
        process = on(0, "train", *TINY, "--quiet", "--run", folder / "j", "--steps", 1000000, "--workers", 2, "--layout", "sync=async:servers=2", "--inject", "slow:0:8,slow:1:8", "--listen", "0.0.0.0:0")
        joiner = on(1, "join", "10.77.0.1:" + listening(process).rsplit(":", 1)[1], "--threads", 1)
        read_until(joiner, "first push")
        os.kill(process.pid, signal.SIGINT)  # `ip netns exec` becomes the program.
        check(finish(process)[0] == 130, "the training was not interrupted")
        finish(joiner)


def test_under_mpirun():
    with Folder() as folder:
        for launcher in mpi_launchers():
            name = launcher.split(".")[1]
            result = subprocess.run([launcher, "-n", "3", COHORT, "train", *map(str, TINY), "--quiet", "--run", str(folder / name), "--steps", "20", "--layout", "sync=async:servers=3"], capture_output=True, text=True, timeout=120)
            check(result.returncode == 0 and record(folder / name, "async")["samples"] == samples_of(folder / name, 20), f"{launcher}: {result.stderr}")


def test_what_cannot_be_is_refused():
    for options, words in ((["--workers", 2, "--layout", "sync=async:servers=3"], "with 2 ranks"), (["--workers", 6, "--layout", "sync=async:servers=6"], "use servers=4 or fewer"), (["--layout", "sync=queue:servers=2", "--workers", 2], "is none of"),
                           (["--workers", 2, "--layout", "sync=async:servers=2", "--remedy", "compensate", "--clip-norm", 1], "no server has the norm"), (["--workers", 2, "--layout", "sync=async:servers=0"], "is none of"),
                           (["--virtual", "workers=2", "--layout", "sync=async:servers=3"], "with 2 workers"), (["--virtual", "workers=8", "--layout", "sync=async:servers=5"], "use servers=4 or fewer"),
                           (["--workers", 2, "--layout", "sync=stale:0:servers=2,compress=int8"], "use sync=step with compress")):
        code, out, err = run(["train", *TINY, "--steps", 3, *options])
        check(code == 2 and words in err and len(err.splitlines()) == 1 and not out, f"{options}: {code} {err}")


if __name__ == "__main__":
    main(globals())

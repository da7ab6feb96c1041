"""Training under the virtual clock: known answers, the same bits each time and after a kill, each sample once an epoch, what is refused."""
import json
import os
import re
import shutil
import signal

from support import Folder, TINY as TINY_MODEL, check, checkpoint_of, exported, finish, largest_difference, main, run, run_ok, start, steps_in, tensors, wait_for

TINY = [*TINY_MODEL, "--threads", 1]  # Threads of a model this small cost more than they bring.
SGD = ["--optimizer", "sgd"]  # The last counts.
# Speeds, pauses, deaths and a link that is busy: all that can happen.
ROUGH = "workers=7,speed=lognormal:0.5,link=2ms:20Mbit,mtbf=1,restart=0.2,compute=0.01,pauses=0.3:0.1,slow=2:4"


def saved(run_folder):
    """Weights and optimizer state of the last checkpoint, from its file: the one rank has all of it."""
    found = tensors(checkpoint_of(run_folder) / "rank-00000.safetensors")
    return {name: tensor for name, tensor in found.items() if not name.startswith("async/")}


def train(folder, name, *options):
    run_ok(["train", *TINY, "--quiet", "--run", folder / name, *options])
    return saved(folder / name)


def record(run_folder, event):
    found = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event][-1]


def curve(run_folder):
    """What the run recorded of its steps that no clock of this machine is in."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [[line.get(key) for key in ("event", "step", "loss", "val_loss", "virtual_seconds", "learning_rate")] for line in lines if line["event"] in ("step", "eval")]


def test_one_worker_is_a_training_of_one_process_bit_by_bit():
    """Whatever the mode, the optimizer, clipping and schedule; the last batch of an epoch is smaller; losses as recorded too."""
    with Folder() as folder:
        for optimizer in ("momentum", "adamw"):
            common = ["--steps", 20, "--optimizer", optimizer, "--clip-norm", 0.5, "--schedule-lr", "cosine", "--warmup-steps", 5, "--eval-every", 9]
            plain = train(folder, f"plain-{optimizer}", *common)
            for sync in ("step", "async", "stale:0", "queue") if optimizer == "momentum" else ("async", "queue"):  # The optimizer of step is that of async.
                name = f"{optimizer}-{sync}".replace(":", "-")
                alone = train(folder, name, *common, "--virtual", "workers=1,compute=0.01,link=1ms:1Gbit", "--layout", f"sync={sync}")
                check(alone == plain, f"{name} is not the training of one process")
                losses = [[row[:4] for row in curve(folder / run)] for run in (name, f"plain-{optimizer}")]
                check(losses[0] == losses[1], f"{name}: other losses")
        dropout = ["--model", "transformer:width=8,layers=1,heads=1,dropout=0.2", "--data", "synthetic:text,samples=256", "--steps", 5, "--sample-bytes", 0]
        check(train(folder, "t", *dropout) == train(folder, "v", *dropout, "--virtual", "workers=1,compute=1", "--layout", "sync=async"), "dropout by work item")


def test_workers_that_wait_are_ranks_bit_by_bit():
    with Folder() as folder:
        for name, how in (("real", ["--workers", 3]), ("virtual", ["--virtual", "workers=3,compute=0.01,slow=1:3"])):
            run_ok(["train", *TINY, "--quiet", "--run", folder / name, "--steps", 20, *how])
        check(exported(folder / "real", folder) == exported(folder / "virtual", folder), "sync=step of 3 virtual workers is not that of 3 ranks")
        check(abs(record(folder / "virtual", "done")["virtual_seconds"] - 20 * 0.03) < 0.03, "the slowest sets the pace")
        for sync, more in (("local:4", ["--optimizer", "adamw", "--clip-norm", 0.5]), ("diloco:4", ["--optimizer", "momentum", "--outer-lr", 0.5]), ("local:8:3", ["--optimizer", "momentum"])):
            for name, how in (("real", ["--workers", 2]), ("virtual", ["--virtual", "workers=2,compute=0.01,slow=1:3"])):
                shutil.rmtree(folder / f"{name}-{sync[:5]}", ignore_errors=True)
                run_ok(["train", *TINY, "--quiet", "--run", folder / f"{name}-{sync[:5]}", "--steps", 24, "--eval-every", 8, "--layout", f"sync={sync}", *more, *how])
            real, virtual = (exported(folder / f"{name}-{sync[:5]}", folder) for name in ("real", "virtual"))
            check(largest_difference(real, virtual) < 1e-6, f"sync={sync} of 2 virtual workers is not that of 2 ranks: {largest_difference(real, virtual)}")
            lines = [[line["step"] for line in map(json.loads, (folder / f"{name}-{sync[:5]}" / "metrics.jsonl").read_text().splitlines()) if line["event"] == "step"] for name in ("real", "virtual")]
            check(lines[0] == lines[1], f"other lines: {lines}")
            # What one saved the other goes on with.
            run_ok(["train", "--run", folder / f"virtual-{sync[:5]}", "--resume", "--quiet", "--steps", 32, "--virtual", "none", "--workers", 2])
            run_ok(["train", "--run", folder / f"real-{sync[:5]}", "--resume", "--quiet", "--steps", 32])
            real, virtual = (exported(folder / f"{name}-{sync[:5]}", folder) for name in ("real", "virtual"))
            difference = largest_difference(real, virtual)  # Of shares that are no power of two: rounding.
            check(difference < 1e-6, f"{difference} {sync}: ranks go on otherwise from what virtual workers saved")


def test_the_advice_of_the_clock_is_what_the_clock_measures():
    """The pace without gradients is that of the training itself; what it proposes follows the conditions."""
    clock = "workers=4,speed=lognormal:0.4,compute=0.02,link=1ms:50Mbit,pauses=2:0.3"
    with Folder() as folder:
        paces = {}
        for sync in ("step", "async", "stale:2", "local:4"):
            run_ok(["train", *TINY, "--quiet", "--seed", 1, "--steps", 400, "--layout", f"sync={sync}", "--virtual", clock, "--run", folder / sync[:5]])
            paces[sync] = record(folder / sync[:5], "async")["samples_per_virtual_second"]
        for sync in paces:
            advice = record(folder / sync[:5], "sync_advice")
            rows = {row["sync"]: row for row in advice["rows"] if "options" not in row}
            check(set(paces) <= set(rows), f"rows of {sorted(rows)}")
            for other, pace in paces.items():
                check(abs(rows[other]["samples_per_second"] / pace - 1) < 0.1, f"after {sync}: {other} {rows[other]['samples_per_second']}, measured {pace}")
        lines = {}
        for name, clock in (("even", "workers=4,compute=0.02"), ("slow", "workers=4,compute=0.02,slow=3:4"), ("link", "workers=4,compute=0.001,link=5ms:1Mbit")):
            run_ok(["train", *TINY, "--quiet", "--steps", 40, "--layout", "sync=step", "--virtual", clock, "--run", folder / name])
            advice = record(folder / name, "sync_advice")
            lines[name] = (advice["sync"], advice.get("options", ""))
        check(lines == {"even": ("step", ""), "slow": ("step", "--shares auto"), "link": ("local:16", "")}, str(lines))


def test_workers_that_die_in_a_round_are_not_waited_for():
    with Folder() as folder:
        common = ["--steps", 120, "--eval-every", 60, "--layout", "sync=diloco:6", "--virtual"]
        train(folder, "whole", *common, "workers=6,compute=0.01,link=1ms:100Mbit")
        train(folder, "dies", *common, "workers=6,compute=0.01,link=1ms:100Mbit,mtbf=0.5,restart=0.1")
        whole, dies = (record(folder / name, "async") for name in ("whole", "dies"))
        check(dies["deaths"] > 5 and dies["lost"] > 5 and whole["lost"] == 0, f"{dies}")
        check(whole["samples"] > dies["samples"] > whole["samples"] / 3, "what a dead worker had in hand is not trained on")
        check(abs(dies["virtual_seconds"] / whole["virtual_seconds"] - 1) < 0.05, f"somebody was waited for: {dies['virtual_seconds']} {whole['virtual_seconds']}")
        check(steps_in(folder / "dies") == 120, "it did not come to its end")


def test_nobody_ahead_is_the_step_with_sgd():
    """stale:0 applies one after the other what step sums: with sgd the difference is rounding."""
    with Folder() as folder:
        step = train(folder, "step", "--steps", 30, *SGD)
        stale = train(folder, "stale", "--steps", 30, *SGD, "--virtual", "workers=5,speed=lognormal:1,compute=0.01,link=1ms:10Mbit", "--layout", "sync=stale:0")
        difference = largest_difference(step, stale)
        check(0 < difference < 1e-5, f"largest difference {difference}")
        free = train(folder, "async", "--steps", 30, *SGD, "--virtual", "workers=5,speed=lognormal:1,compute=0.01,link=1ms:10Mbit", "--layout", "sync=async")
        check(largest_difference(step, free) > 1e-4, "async is something else")
        check(record(folder / "stale", "async")["most_late_steps"] < 1 and record(folder / "async", "async")["most_late_steps"] > 1, "lateness")
        for name in ("stale", "async"):
            accounts = record(folder / name, "async")
            sums = [sum(worker[f"{what}_seconds"] for what in ("computing", "waiting", "moving")) for worker in accounts["workers"]]
            check(all(abs(total - accounts["virtual_seconds"]) < 1e-6 for total in sums), f"{name}: each worker computes, waits or moves all the time: {sums} of {accounts['virtual_seconds']}")


def test_the_same_bits_each_time():
    with Folder() as folder:
        for sync, more in (("async", ["--remedy", "rate:0.5"]), ("stale:1,compress=int8", []), ("queue", [])):  # A resumed one: the next test.
            options = ["--steps", 15, "--virtual", ROUGH, "--layout", f"sync={sync}", *more]
            runs = [train(folder, f"{sync[:5]}-{i}", *options, *(["--seed", 2] if i == 2 else [])) for i in range(3 if sync == "async" else 2)]
            check(runs[0] == runs[1] and curve(folder / f"{sync[:5]}-0") == curve(folder / f"{sync[:5]}-1"), f"{sync}: two runs differ")
            check(runs[0] != runs[-1] or sync != "async", f"{sync}: another seed, the same training")


def test_a_killed_run_goes_on_as_if_nothing_had_been():
    """SIGKILL in the middle; work items, work in flight, events and accounts come back from the checkpoint."""
    with Folder() as folder:
        for sync, more in (("async", ["--remedy", "rate:0.5"]), ("stale:2", ["--optimizer", "adam"]), ("async,compress=int8", []), ("queue", []), ("step", []), ("diloco:3:2", ["--eval-every", 21, "--optimizer", "adam"])):
            options = ["--steps", 60, "--checkpoint-every", 9, "--eval-every", 20, "--keep-checkpoints", 2, "--virtual", ROUGH, "--layout", f"sync={sync}", *more]
            whole = train(folder, "whole", *options)
            process = start(["train", *TINY, "--quiet", "--run", folder / "killed", *options])
            wait_for(lambda: any(path.name[5:].isdigit() for path in (folder / "killed/checkpoints").glob("step-*")) or process.poll() is not None, "a checkpoint")
            os.killpg(process.pid, signal.SIGKILL)
            finish(process)
            check(steps_in(folder / "killed") < 60, "the kill came too late to show anything")
            run_ok(["train", folder / "killed/config.toml", "--resume", "--quiet"])
            check(saved(folder / "killed") == whole, f"{sync} {more}: other weights after a resume")
            check(curve(folder / "killed")[-20:] == curve(folder / "whole")[-20:], f"{sync} {more}: other losses or times")
            accounts = [record(folder / name, "async") for name in ("whole", "killed")]
            check(accounts[0] == accounts[1], f"{sync}: other accounts\n{accounts}")
            for name in ("whole", "killed"):
                shutil.rmtree(folder / name)


def test_each_sample_counts_once_and_the_accounts_add_up():
    with Folder() as folder:
        for sync in ("async", "stale:1", "queue", "step"):
            name = sync[:5]
            train(folder, name, "--epochs", 3, "--virtual", ROUGH, "--layout", f"sync={sync}")
            start_line, accounts = record(folder / name, "start"), record(folder / name, "async")
            check(accounts["samples"] == 3 * start_line["train_samples"] == sum(worker["samples"] for worker in accounts["workers"]), f"{sync}: {accounts['samples']} samples")
            check(sum(accounts["pushes_of_staleness"]) == accounts["pushes"] == sum(worker["pushes"] for worker in accounts["workers"]), f"{sync}: pushes")
            check(accounts["deaths"] > 0 and accounts["lost"] > 0, f"{sync}: nobody died, so this shows nothing")
            check(record(folder / name, "done")["step"] == start_line["steps"] == steps_in(folder / name), f"{sync}: steps")
            if sync == "async":
                slow, others = accounts["workers"][2], [w["samples"] for w in accounts["workers"] if w["worker"] != 2]
                check(slow["samples"] < min(others), "the slow one does least, and holds up nobody")
            check("Workers that do not wait" in (folder / name / "report.html").read_text(), "the report has its section")


def test_compressed_pushes_are_fewer_bytes_on_the_link():
    """Where nothing but the way to the server takes time, a step takes as long as its bytes say."""
    with Folder() as folder:
        common = ["--model", "fc:hidden=256", "--steps", 30, "--virtual", "workers=4,compute=1e-9,link=0:1Mbit"]
        found = {}
        for compress in ("none", "fp16", "int8"):
            train(folder, compress, *common, "--layout", f"sync=async,compress={compress}")
            found[compress] = record(folder / compress, "async")
        whole = found["none"]
        check("compress" not in whole and whole["bytes_to_server"] == whole["bytes_to_workers"], f"{whole}")
        for compress, part in (("fp16", 0.5), ("int8", 0.255)):
            check(found[compress]["bytes_to_workers"] == whole["bytes_to_workers"], "versions travel whole")
            check(abs(found[compress]["bytes_to_server"] / whole["bytes_to_server"] - part) < 0.02, f"{compress}: {found[compress]['bytes_to_server']} of {whole['bytes_to_server']}")
            check(found[compress]["virtual_seconds"] < whole["virtual_seconds"], "no faster")


def test_a_run_goes_on_under_other_syncs_and_without_the_clock():
    with Folder() as folder:
        run_ok(["train", *TINY, "--quiet", "--run", folder / "r", "--steps", 10, "--virtual", "workers=4,compute=0.01", "--layout", "sync=async"])
        for steps in (12, 20):  # Of a run that was at its end, workers find work items again.
            run_ok(["train", "--run", folder / "r", "--resume", "--quiet", "--steps", steps, *(["--layout", "sync=queue"] if steps == 20 else [])])
        code, _, err = run(["train", "--run", folder / "r", "--resume", "--steps", 30, "--virtual", "workers=2,compute=0.01"])
        check(code == 0 and "all workers begin anew" in err, err)
        lines = run_ok(["train", *TINY, "--json", "--run", folder / "r2", "--steps", 10])
        run_ok(["train", "--run", folder / "r2", "--resume", "--quiet", "--steps", 20, "--virtual", "workers=3,compute=0.01", "--layout", "sync=stale:1"])
        check(lines[-1]["event"] == "done" and steps_in(folder / "r2") == 20, "a plain run goes on under the clock")
        code, _, err = run(["train", "--run", folder / "r2", "--resume", "--steps", 25, "--virtual", "none", "--layout", "dp", "--quiet"])
        check(code == 0 and steps_in(folder / "r2") == 25, err)


def test_measured_computing_time_can_be_given_again():
    with Folder() as folder:
        first = train(folder, "a", "--steps", 10, "--virtual", "workers=3,speed=lognormal:0.5", "--layout", "sync=async")
        config = (folder / "a/config.toml").read_text()
        check(re.search(r'virtual = "workers=3,speed=lognormal:0.5,compute=[0-9.e-]+"', config), config)
        run_ok(["train", folder / "a/config.toml", "--run", folder / "b", "--quiet"])
        check(saved(folder / "b") == first and curve(folder / "a") == curve(folder / "b"), "config.toml gives the same run")


def test_what_is_malformed_or_does_not_act_is_refused_in_one_line():
    virtual = ["--virtual", "workers=2,compute=0.01"]
    with Folder() as folder:
        for options, says in (
                (["--virtual", "speed=even"], "add workers=N"),
                (["--virtual", "workers=4,sped=even"], "did you mean 'speed'"),
                (["--virtual", "workers=4,link=1ms"], "expected LATENCY:RATE"),
                (["--virtual", "workers=33"], "use --global-batch 33"),
                (["--virtual", "workers=2,serve=newest", "--layout", "sync=async"], "unknown key"),
                ([*virtual, "--layout", "sync=stale:-1"], "none of: step async"),
                ([*virtual, "--workers", "2"], "with 2 ranks"),
                ([*virtual, "--accumulate", "2"], "--accumulate 2 with --virtual"),
                ([*virtual, "--memory-limit", "1000000000"], "--memory-limit 1000000000 with --virtual"),
                ([*virtual, "--inject", "kill:0:1"], "--inject kill:0:1 with --virtual"),
                ([*virtual, "--layout", "sync=queue", "--remedy", "rate:0.5"], "sync is queue"),
                ([*virtual, "--layout", "sync=queue,compress=int8"], "use sync=async"),
                ([*virtual, "--layout", "sync=local:3,compress=int8"], "also with --virtual"),
                ([*virtual, "--layout", "compress=int8"], "with dp=2 or more"),
                ([*virtual, "--layout", "sync=async", "--remedy", "prayer"], "no remedy 'prayer'"),
                ([*virtual, "--layout", "sync=async", "--remedy", "drop:1"], "no remedy 'drop'; there is rate:FACTOR"),
                ([*virtual, "--layout", "sync=async", "--remedy", "rate"], "expected rate:FACTOR"),
                ([*virtual, "--model", "vgg11:width=2,hidden=8,norm=batch", "--data", "synthetic:1x16x16,classes=4,samples=96"], "use another norm")):
            code, _, err = run(["train", *(TINY if "--model" not in options else ["--global-batch", 32]), "--run", folder / "r", "--steps", 3, *options])
            check(code == 2 and err.count("\n") == 1 and says in err, f"{options}: exit code {code}\n{err}")
            check(not (folder / "r").exists(), f"{options} left a folder")
        code, _, err = run(["verify", *TINY, "--layout", "sync=async"])
        check(code == 2 and "another training by design" in err, err)


if __name__ == "__main__":
    main(globals())

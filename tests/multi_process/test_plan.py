"""`cohort plan` from a profile or from shapes: the plan runs, its bound holds, what contradicts itself is one line, Ctrl-C gives the best so far."""
import json
import pathlib
import re
import signal
import time

from support import Folder, check, finish, main, run, run_ok, start

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAIN, BRANCHES = ROOT / "examples/profiles/chain.json", ROOT / "examples/profiles/branches.json"
CLUSTER = """name = "two cores"
shared_memory = true
[[device]]
name = "core"
memory_bytes = {memory}
rates = {{ fp32 = 6e10, bf16 = 1.2e11 }}
memory_bytes_per_second = 8e9
launch_seconds = 1e-5
[[hosts]]
num_hosts = {hosts}
devices_per_host = 2
device = "core"
[links.inside]
latency_seconds = 5e-6
bytes_per_second = 4e9
[links.across]
latency_seconds = 5e-5
bytes_per_second = 1.2e9
"""
QUICK = ["--search-seconds", 5, "--no-what-if"]


def cluster(folder, hosts=1, memory="4e9"):
    path = folder / f"cluster-{hosts}-{memory}.toml"
    path.write_text(CLUSTER.format(hosts=hosts, memory=int(float(memory))))
    return path


def plan(*arguments):
    return run_ok(["plan", *arguments, *QUICK, "--json"])[-1]


def test_a_plan_from_shapes_runs_on_the_model():
    with Folder() as folder:
        where = ["--model", "cnn", "--data", "synthetic:1x28x28,classes=10", "--global-batch", 32, "--cluster", cluster(folder)]
        for number, fixed in enumerate(([], ["--layout", "pp=2"], ["--layout", "dp=2,zero=2"], ["--layout", "pp=2,schedule=zb-v,recompute=all"], ["--precision", "bf16"])):
            out = folder / f"plan-{number}.json"
            chosen = plan(*where, *fixed, "--out", out)
            check(chosen["event"] == "plan" and 0 < chosen["lower_bound_seconds"] <= chosen["objective_seconds"], chosen)
            check(chosen["interval"][0] <= chosen["predicted_step_seconds"] <= chosen["interval"][1], chosen)
            for key, value in (pair.split("=") for pair in (fixed[1].split(",") if fixed[:1] == ["--layout"] else [])):
                check(str(chosen["layout"][key]) == value, f"{fixed}: {chosen['layout']}")
            lines = run_ok(["train", "--model", "cnn", "--data", "synthetic:1x28x28,classes=10,samples=128", "--global-batch", 32, "--workers", chosen["num_workers"],
                            "--layout", out, "--steps", 2, "--run", folder / f"run-{number}", "--json"])
            layout = lines[0]["layout"]
            check(all(layout[key] == chosen["layout"][key] for key in ("dp", "pp", "tp", "zero", "schedule", "microbatches", "recompute", "precision")), f"{layout} {chosen['layout']}")


def test_smaller_pictures_cost_less():
    with Folder() as folder:
        where = ["--model", "cnn", "--data", "fashion-mnist", "--global-batch", 32, "--cluster", cluster(folder)]
        whole, half = plan(*where), plan(*where, "--image-size", 14)
        check(half["predicted_step_seconds"] < 0.6 * whole["predicted_step_seconds"], f"{half} {whole}")
        check("--image-size 14" in run_ok(["plan", *where, "--image-size", 14, *QUICK]).splitlines()[-1], "the train line")


def test_profiles_in_files_and_every_objective():
    with Folder() as folder:
        for profile in (CHAIN, BRANCHES):
            where = ["--profile", profile, "--cluster", cluster(folder, hosts=2), "--global-batch", 64, "--optimizer", "adamw"]
            fastest, smallest = plan(*where), plan(*where, "--objective", "memory")
            check(smallest["peak_memory_bytes"] <= fastest["peak_memory_bytes"] and fastest["predicted_step_seconds"] <= smallest["predicted_step_seconds"], f"{fastest} {smallest}")
            check(plan(*where, "--objective", "throughput")["objective"] > 0, "throughput")
            rows = [(one["predicted_step_seconds"], one["peak_memory_bytes"]) for one in fastest["front"]]
            check(rows == sorted(rows) and all(a[1] > b[1] for a, b in zip(rows, rows[1:])), rows)
            check(len({json.dumps(one["layout"]) for one in fastest["runners_up"]}) == len(fastest["runners_up"]) > 0, fastest["runners_up"])
            check(any("tied" in reason or "lost" in reason for reason in fastest["reasons"]), fastest["reasons"])
            alone = plan(*where, "--workers", 1)
            check(alone["num_workers"] == 1 and alone["predicted_step_seconds"] >= fastest["predicted_step_seconds"], alone)


def test_the_batch_is_chosen_for_the_time_to_the_goal():
    with Folder() as folder:
        curve = folder / "curve.csv"
        curve.write_text("batch_size,steps\n16,4000\n64,1050\n256,900\n1024,890\n")
        chosen = plan("--profile", CHAIN, "--cluster", cluster(folder), "--objective", "time-to-goal", "--steps-curve", curve)
        steps = {16: 4000, 64: 1050, 256: 900, 1024: 890}[chosen["global_batch"]]
        check(chosen["global_batch"] in (16, 64) and abs(chosen["objective"] / (steps * chosen["predicted_step_seconds"]) - 1) < 1e-9, chosen)


def test_the_table_says_why_and_the_page_opens_alone():
    with Folder() as folder:
        page = folder / "plan.html"
        text = run_ok(["plan", "--profile", CHAIN, "--cluster", cluster(folder, hosts=2), "--global-batch", 64, "--layout", "pp=2", "--search-seconds", 2, "--report", page])
        for words in ("layout", "worker", "no plan is", "the busiest worker", "What would change it", "links between hosts at half their rate", "a GiB more on each device saves", "A plain cut", "cohort train --model MODEL"):
            check(words in text, f"{words}: {text}")
        html = page.read_text()
        check("<svg" in html and "Why this one" in html and "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html, html[:500])


def test_nothing_fits_says_what_would():
    with Folder() as folder:
        where = ["--model", "transformer:layers=4,width=512,heads=8", "--global-batch", 8, "--optimizer", "adam"]
        code, out, err = run(["plan", *where, "--cluster", cluster(folder, memory="2e6"), "--json"])
        check(code == 3 and '"event":"ladder"' in out and len(out.splitlines()) == 1 and len(err.splitlines()) == 1, f"{code} {out} {err}")
        least = int(re.search(r"needs (\d+) bytes", err)[1])
        check(plan(*where, "--cluster", cluster(folder, memory=str(least)))["peak_memory_bytes"] <= least, err)


def test_what_contradicts_itself_is_one_line():
    with Folder() as folder:
        here, broken = cluster(folder), folder / "broken.toml"
        broken.write_text(here.read_text()[:200])
        good = ["--profile", CHAIN, "--cluster", here]
        for arguments, words in ((["--profile", CHAIN], "--cluster"), (["--cluster", here], "plan: no model given"), ([*good, "--model", "cnn"], "leave --model out"), ([*good, "--data", "mnist:x"], "--data is for --model"),
                                 (["--instance", ROOT / "examples/instances/branches.json", "--cluster", here], "--instance says all itself"), ([*good, "--steps-curve", "x.csv", "--objective", "memory"], "time-to-goal"),
                                 ([*good, "--objective", "time-to-goal"], "--steps-curve FILE"), ([*good, "--objective", "speed"], "there are"), ([*good, "--search-seconds", "0"], "--search-seconds 0"),
                                 ([*good, "--layout", "sync=async"], "sync=async"), ([*good, "--layout", "zero=4"], "zero"), ([*good, "--layout", "precision=fp32", "--precision", "bf16"], "contradict"),
                                 ([*good, "--workers", 9], "9"), (["--profile", CHAIN, "--cluster", broken], "broken.toml"), (["--profile", here, "--cluster", here], "cluster"),
                                 (["--model", "transfomer", "--cluster", here], "did you mean 'transformer'"), (["--model", "cnn:heads=2", "--cluster", here], "heads"), ([*good, "--global-batch", 0], "global-batch"),
                                 ([*good, "--layout", "pp=64"], "need 64 ranks"), ([*good, "--layout", "tp=2"], "no costs for tp=2"), ([*good, "--layout", "schedule=zb-v", "--workers", 1], "for stages"),
                                 ([*good, "--layout", "compress=banana,dp=2"], "no such compression"), ([*good, "--out", folder / "no" / "plan.json", *QUICK], "plan.json")):
            code, out, err = run(["plan", *arguments])
            check(code == 2 and not out and len(err.splitlines()) == 1 and words in err, f"{arguments}: {code} {out} {err}")


def test_ctrl_c_gives_the_best_so_far():
    with Folder() as folder:
        process = start(["plan", "--model", "transformer:layers=96,width=4096,heads=32,context=1024,vocabulary=50257", "--cluster", cluster(folder, hosts=64, memory="2e11"), "--global-batch", 4096, "--search-seconds", 100, "--json"])
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        code, out, err = finish(process)
        check(code in (0, 130) and time.monotonic() - began < 30, f"{code} {err}")
        if code == 0:
            check(json.loads(out)["predicted_step_seconds"] > 0, out)


if __name__ == "__main__":
    main(globals())

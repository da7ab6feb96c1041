"""Pipelines, tensor parallelism and meshes give the training that one process gives (a part of the matrix of scripts/verify-matrix), are refused with a sentence where
they do not go together, leave checkpoints that any other layout reads, and fit into less memory."""
import json
import os
import pathlib

from support import Folder, check, main, run, run_ok
from verify_matrix import IMAGES, MODELS, OPTIONS, TEXT, WITHIN_A_BOUND, cases, command

PARTS = 12  # Each option takes one of so many parts of the layouts, by turns, so that every layout and every option is in.


def verify_part(model):
    for number, option in enumerate(OPTIONS):
        arguments = command(model, option)
        if arguments is None:
            continue
        every = [layout for _, layout in cases(model, option)]
        parts = min(PARTS, len(every))
        layouts = [layout for place, layout in enumerate(every) if place % parts == number % parts]
        lines = [line for line in run_ok(["verify", *arguments, "--layouts", ";".join(layouts), "--json"], timeout=300) if line["event"] == "verify"]
        check(len(lines) == len(layouts), f"{model} {option}: {len(lines)} of {len(layouts)} layouts")
        for layout, line in zip(layouts, lines):
            check(line["verdict"] == "same" and line["repeats_bitwise"], f"{model} {option} {layout}: {line}")
            bits = option not in WITHIN_A_BOUND or "dp=" not in layout
            check((line["strict"] == "bitwise") == bits, f"{model} {option} {layout}: {line}")


def test_cnn():
    verify_part("cnn")


def test_resnet8():
    verify_part("resnet8")


def test_labels():
    verify_part("labels")


def test_lstm():
    verify_part("lstm")


def test_an_lstm_in_bf16_on_a_processor_without_a_kernel_for_it():
    arguments = [*MODELS["lstm"], "--precision", "bf16", "--steps", "2"]
    run_ok(["verify", *arguments, "--layouts", "dp=2;pp=3,microbatches=2;tp=2", "--json"], env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})
    for isa, is_said in (("AVX2", True), ("AVX512_CORE", "avx512bw" not in pathlib.Path("/proc/cpuinfo").read_text())):
        with Folder() as folder:
            code, _, err = run(["train", *arguments, "--run", folder / "run"], env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa})
            check(code == 0 and ("no kernel for an LSTM in bf16" in err) == is_said, f"{isa}: {code} {err}")


def test_transformer():
    verify_part("transformer")


def test_inception():
    verify_part("inception")


def test_more_stages_than_layers_are_refused():
    code, _, err = run(["verify", *MODELS["lstm"], "--steps", "1", "--layouts", "pp=4"])
    check(code == 2 and "3 layers can not be cut into 4 stages" in err, f"{code}: {err}")


def test_batch_norm_and_dropout():
    for norm in ("resnet50:width=8,blocks=1-1,norm=ghost,ghost=4", "resnet50:width=8,blocks=1-1,norm=group", "inception:width=8"):
        lines = run_ok(["verify", "--model", norm, *IMAGES, "--lr", "0.01", "--steps", "1", "--layouts", "pp=3,microbatches=3;tp=2;dp=2,pp=2,schedule=zb-h1,microbatches=3", "--json"])
        check(all(line["ok"] for line in lines if line["event"] == "verify"), lines[-1])
    dropout = ["--model", "transformer:width=32,layers=2,heads=2,dropout=0.2", *TEXT, "--steps", "2"]
    lines = run_ok(["verify", *dropout, "--layouts", "pp=2,microbatches=4,recompute=all;tp=2;tp=2,sequence=1;dp=2,pp=2,microbatches=2,schedule=zb-v", "--json"])
    check(all(line["ok"] for line in lines if line["event"] == "verify"), lines[-1])


def test_batch_norm_over_ranks_in_a_pipeline():
    lines = run_ok(["verify", "--model", "vgg11:width=4,hidden=16,norm=batch", *IMAGES, "--lr", "0.01", "--steps", "2", "--sync-batch-norm",
                    "--layouts", "pp=2,microbatches=2;dp=2,pp=2,microbatches=2", "--json"])
    check(all(line["ok"] for line in lines if line["event"] == "verify"), lines[-1])


def test_over_gloo_and_any_rank_order():
    for order in ("dp-tp-pp", "pp-tp-dp", "tp-pp-dp"):
        lines = run_ok(["verify", *MODELS["cnn"], "--steps", "2", "--backend", "gloo", "--layouts", f"dp=2,pp=2,tp=2,microbatches=2,order={order}", "--json"])
        check(lines[-1]["ok"], lines[-1])


def test_what_does_not_go_together_is_refused_with_a_sentence():
    for arguments, sentence in (
        (["--layout", "pp=2,compress=int8"], "compress=none"),
        (["--layout", "pp=2,schedule=1f2b"], "1f1b"),
        (["--layout", "pp=40"], "stage"),
        (["--layout", "pp=2,split=40"], "split"),
        (["--layout", "microbatches=4"], "--accumulate"),
        (["--layout", "pp=2,sync=async"], "sync=local:H"),
        (["--layout", "tp=2", "--shares", "2:1"], "equal"),
        (["--layout", "pp=2,split=branches"], "branches"),
        (["--layout", "pp=2", "--sync-batch-norm"], "batch norm"),
        (["--layout", "pp=2", "--workers", "3"], "--workers 2"),
        (["--layout", "no-such-layout.json"], "no-such-layout.json"),
    ):
        with Folder() as folder:
            code, _, err = run(["train", *MODELS["cnn"], "--steps", "1", "--quiet", "--run", folder / "run", *arguments])
            check(not (folder / "run").exists(), f"{arguments}: a run that was refused left its folder")
        check(code == 2, f"{arguments}: exit code {code}: {err}")
        lines = [line for line in err.splitlines() if "error" in line]
        check(lines and sentence in lines[0], f"{arguments}: {err}")


def test_a_checkpoint_of_any_layout_loads_under_any_other():
    with Folder() as folder:
        base = ["train", *MODELS["transformer"], "--quiet", "--json", "--threads", "1"]
        run_ok([*base, "--run", folder / "whole", "--steps", "7"])
        layouts = ("pp=2,microbatches=2", "dp=2,tp=2,zero=2", "pp=3,schedule=zb-h1,microbatches=3", "single", "tp=4", "dp=2,pp=2,tp=2,microbatches=2,zero=3", "dp=3,zero=1")
        for steps, layout in enumerate(layouts, 1):
            run_ok([*base, "--run", folder / "moved", "--steps", steps, "--layout", layout, *(["--resume"] if steps > 1 else [])])
        one, other = last_loss(folder / "whole"), last_loss(folder / "moved")
        check(abs(one - other) < 1e-4 * abs(one), (one, other))
        latest = folder / "moved" / "checkpoints" / "latest"
        run_ok(["checkpoint", "verify", latest, "--json"])
        run_ok(["checkpoint", "export", latest, "--out", folder / "moved.safetensors", "--json"])
        run_ok(["checkpoint", "export", folder / "whole" / "checkpoints" / "latest", "--out", folder / "whole.safetensors", "--json"])
        check(tensors_of(folder / "moved.safetensors") == tensors_of(folder / "whole.safetensors"), "the merged model has the whole model's tensors")


def tensors_of(path):
    """Type, shape and place of each, of a safetensors file."""
    raw = path.read_bytes()
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    return {name: about for name, about in header.items() if name != "__metadata__"}


def last_loss(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"][-1]


LIMIT = 60 << 20


def test_less_memory_than_one_worker_needs():
    model = ["--model", "transformer:width=256,layers=6,heads=4", "--data", "synthetic:text,samples=64", "--context", "32", "--global-batch", "8", "--optimizer", "adam",
             "--steps", "2", "--quiet", "--json", "--memory-limit", str(LIMIT), "--sample-bytes", "0"]
    with Folder() as folder:
        code, _, err = run(["train", *model, "--run", folder / "alone"])
        check(code == 4 and "memory" in err and "limit" in err, f"{code}: {err}")
        for layout in ("pp=4,microbatches=8,recompute=auto", "dp=2,tp=2,zero=1", "dp=4,zero=3"):
            run_ok(["train", *model, "--layout", layout, "--run", folder / layout.replace("=", "").replace(",", "-")])
            lines = [json.loads(line) for line in (folder / layout.replace("=", "").replace(",", "-") / "metrics.jsonl").read_text().splitlines()]
            ranks = [line for line in lines if line["event"] == "ranks"][-1]["ranks"]
            check(all(0 < rank["peak_tensor_bytes"] <= LIMIT for rank in ranks), ranks)
            if "pp" in layout or "tp" in layout:
                check(all(rank["part"]["layers"] for rank in ranks), "who holds what")


def test_a_rank_that_is_late_is_found_by_its_number_in_the_job():
    with Folder() as folder:
        code, _, err = run(["train", *MODELS["cnn"], "--steps", "3", "--quiet", "--layout", "dp=2,pp=2,microbatches=2", "--inject", "pause:3:20", "--timeout", "2", "--run", folder / "run"])
        check(code == 4, f"{code}: {err}")
        check("job ranks 0 2" in err or "job ranks 1 3" in err or "job ranks 2 3" in err or "job ranks 0 1" in err, err)


def test_nothing_leaks_over_a_thousand_steps():
    base = ["train", "--model", "fc:hidden=32,layers=3", *IMAGES, "--quiet", "--json", "--memory-limit", str(1 << 30)]
    with Folder() as folder:
        for layout in ("pp=2,schedule=zb-h1,microbatches=4,split=even", "tp=2,recompute=all"):
            peaks = []
            for steps in (30, 1030):
                run_ok([*base, "--layout", layout, "--steps", steps, "--eval-every", steps, "--run", folder / f"{layout[:2]}-{steps}"], timeout=300)
                lines = [json.loads(line) for line in (folder / f"{layout[:2]}-{steps}" / "metrics.jsonl").read_text().splitlines()]
                peaks.append([rank["peak_tensor_bytes"] for rank in [line for line in lines if line["event"] == "ranks"][-1]["ranks"]])
            # One float kept a step and rank would be 4 kB: 1,000 of the smallest tensors 64 kB.
            check(all(after - before < 16384 for before, after in zip(*peaks)), f"{layout}: {peaks}")


def test_the_forecast_stands_beside_the_measurement():
    with Folder() as folder:
        done = run_ok(["train", *MODELS["transformer"], "--steps", "3", "--quiet", "--json", "--layout", "pp=2,microbatches=4", "--run", folder / "run"])[-1]
        check(done["event"] == "done" and done["predicted_step_seconds"] > 0 and done["measured_step_seconds"] > 0, done)


if __name__ == "__main__":
    main(globals())

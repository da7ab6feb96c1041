"""Tables of the forms that others have published (docs/formats/measured_steps.md), made up, for the printed commands of `cohort bench forecast`."""
import json
import pathlib

HEADER = ("# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,data parallelism,"
          "pipeline parallelism,iteration time (ms)")
rows = [f"1,16,{micro},{width},16,{layers},1024,1,1,1,{20 + 96 * 16 * 1024 * layers * width**2 / 1.5e11:.6f}"
        for width in (1024, 2048, 4096) for layers in (12, 24) for micro in (2, 4, 8)]
pathlib.Path("single_node.csv").write_text("\n".join([HEADER, *rows]) + "\n")

HEADER = ("gpu,model,d_model,n_heads,n_layers,vocab_size,seq_len_tokens,gpus,micro_batch_size,global_batch_size,mp_mode,sharding_strategy,"
          "activation_checkpointing,step_seconds")
rows = [f"a100_40gb,1b,2048,16,24,50368,2048,8,{micro},{8 * micro},PURE,FULL_SHARD,True,{0.2 * micro}" for micro in (4, 8)]
pathlib.Path("mpt.csv").write_text("\n".join([HEADER, *rows]) + "\n")

profiles = pathlib.Path("sailor/profiles/tiny")
profiles.mkdir(parents=True)
model = {"model": "tiny", "hidden_size": 1024, "num_layers": 1, "heads": 16, "sequence_length": 512, "vocab_size": 1000}
pathlib.Path("sailor/training_tiny.json").write_text(json.dumps(model))
times = {str(micro): {"1": {"1": [0.001 * micro, 0.002 * micro, 0.001]}} for micro in range(1, 13)}
(profiles / "A100-40.json").write_text(json.dumps(times))

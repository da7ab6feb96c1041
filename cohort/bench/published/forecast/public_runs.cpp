// CSV with a header; columns are found by name, in any order, others are passed over. Every number is checked: counts are whole, from 1 to
// two thousand millions, times are positive.

#include "cohort/bench/published/forecast/public_runs.h"

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

int degree_of(const CsvRow& row, const std::string& column) { return static_cast<int>(row.count(column)); }

/// vTrain (MICRO 2024): Megatron-DeepSpeed on A100, everything recomputed, gradients exchanged after the last backward.
PublicRun vtrain_run(const CsvRow& row) {
  PublicRun run;
  run.machine = "a100";
  TransformerRun& step = run.measured.run;
  step.shape = {.num_layers = row.count("# layers"),
                .width = row.count("hidden size"),
                .num_heads = row.count("attention heads"),
                .context = row.count("sequence length"),
                .vocabulary = 50257};
  step.micro_batch = row.count("micro batch");
  step.global_batch = row.count("global batch");
  step.tp = degree_of(row, "tensor parallelism");
  step.dp = degree_of(row, "data parallelism");
  step.pp = degree_of(row, "pipeline parallelism");
  step.recompute = true;
  if (static_cast<double>(step.tp) * step.dp * step.pp != static_cast<double>(row.count("# GPUs")))
    row.refuse("# GPUs", concat(step.tp, " x ", step.dp, " x ", step.pp, ", the degrees' product"));
  run.measured.measured_seconds = row.positive("iteration time (ms)") * 1e-3;
  run.choice =
      join({row.text("# GPUs"), row.text("global batch"), row.text("hidden size"), row.text("# layers"), row.text("sequence length")}, " ");
  return run;
}

/// llm-foundry: MPT under FSDP, which is ZeRO 3 (FULL_SHARD) or 2 (SHARD_GRAD_OP) over all devices.
PublicRun llm_foundry_run(const CsvRow& row) {
  static const std::vector<std::string> kDevices = {"a100_40gb", "a100_80gb", "h100_80gb"};
  PublicRun run;
  run.machine = row.one_of("gpu", kDevices) < 2 ? "a100" : "h100";
  TransformerRun& step = run.measured.run;
  step.shape = {.num_layers = row.count("n_layers"),
                .width = row.count("d_model"),
                .num_heads = row.count("n_heads"),
                .context = row.count("seq_len_tokens"),
                .vocabulary = row.count("vocab_size"),
                .fused_attention = true};
  step.micro_batch = row.count("micro_batch_size");
  step.global_batch = row.count("global_batch_size");
  step.dp = degree_of(row, "gpus");
  step.zero = row.one_of("sharding_strategy", {"FULL_SHARD", "SHARD_GRAD_OP"}) == 0 ? 3 : 2;
  step.recompute = row.one_of("activation_checkpointing", {"False", "True"}) == 1;
  step.gradient_bytes = row.one_of("mp_mode", {"PURE", "DEFAULT"}) == 0 ? 2 : 4;
  run.measured.measured_seconds = row.positive("step_seconds");
  run.choice = join({row.text("gpu"), row.text("model"), row.text("seq_len_tokens"), row.text("gpus")}, " ");
  run.samples = static_cast<double>(step.global_batch);
  return run;
}

}  // namespace

std::vector<PublicRun> read_public_runs(const std::string& format, const std::string& path) {
  if (format == "sailor") return read_sailor_runs(path);
  const bool is_vtrain = format == "vtrain";
  if (!is_vtrain && format != "llm-foundry")
    fail(ErrorCode::kBadInput, "no format '", format, "'", did_you_mean(format, {"vtrain", "llm-foundry", "sailor"}),
         "; there are: vtrain llm-foundry sailor");
  std::vector<PublicRun> runs;
  for (const CsvRow& row : read_csv(path)) {
    PublicRun run = is_vtrain ? vtrain_run(row) : llm_foundry_run(row);
    const TransformerRun& step = run.measured.run;
    if (step.global_batch < step.micro_batch * step.dp)
      fail(ErrorCode::kBadInput, row.where(), ": a global batch of ", step.global_batch, " is less than a micro-batch of ",
           step.micro_batch, " for each of ", step.dp, " replicas");
    run.row = static_cast<int64_t>(runs.size()) + 1;
    runs.push_back(std::move(run));
  }
  if (runs.empty()) fail(ErrorCode::kBadInput, path, ": no rows; expected a header and measured steps, as ", format, " publishes them");
  return runs;
}

}  // namespace cohort

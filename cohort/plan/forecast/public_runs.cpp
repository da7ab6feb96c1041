// CSV with a header; columns are found by name, in any order, others are passed over. Every number is checked: counts are whole, from 1 to
// two thousand millions, times are positive.

#include "cohort/plan/forecast/public_runs.h"

#include <algorithm>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMostBytes = size_t{1} << 26;
constexpr int64_t kMostCount = 2'000'000'000;

/// One line of a table, by its column's names.
class Row {
 public:
  Row(const std::vector<std::string>& header, std::vector<std::string> fields, std::string where)
      : header_(header), fields_(std::move(fields)), where_(std::move(where)) {
    if (fields_.size() != header_.size())
      fail(ErrorCode::kBadInput, where_, ": ", fields_.size(), " fields, and the header has ", header_.size());
  }

  std::string text(const std::string& column) const {
    const auto at = std::find(header_.begin(), header_.end(), column);
    if (at == header_.end()) fail(ErrorCode::kBadInput, where_, ": no column '", column, "'", did_you_mean(column, header_));
    return trim(fields_[static_cast<size_t>(at - header_.begin())]);
  }
  int64_t count(const std::string& column) const {
    const auto number = parse_number(text(column));
    if (!number || *number < 1 || *number > static_cast<double>(kMostCount) ||
        *number != static_cast<double>(static_cast<int64_t>(*number)))
      refuse(column, concat("a whole number from 1 to ", kMostCount));
    return static_cast<int64_t>(*number);
  }
  int degree(const std::string& column) const { return static_cast<int>(count(column)); }
  double seconds(const std::string& column, double unit_seconds) const {
    const auto number = parse_number(text(column));
    if (!number || *number <= 0) refuse(column, "a positive number");
    return *number * unit_seconds;
  }
  /// Index of the field's text in `allowed`.
  size_t one_of(const std::string& column, const std::vector<std::string>& allowed) const {
    const auto at = std::find(allowed.begin(), allowed.end(), text(column));
    if (at == allowed.end()) refuse(column, "one of " + join(allowed, " "));
    return static_cast<size_t>(at - allowed.begin());
  }
  [[noreturn]] void refuse(const std::string& column, const std::string& expected) const {
    fail(ErrorCode::kBadInput, where_, ": ", column, " is '", printable(text(column)), "', expected ", expected);
  }
  const std::string& where() const { return where_; }

 private:
  const std::vector<std::string>& header_;
  std::vector<std::string> fields_;
  std::string where_;
};

/// vTrain (MICRO 2024): Megatron-DeepSpeed on A100, everything recomputed, gradients exchanged after the last backward.
PublicRun vtrain_run(const Row& row) {
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
  step.tp = row.degree("tensor parallelism");
  step.dp = row.degree("data parallelism");
  step.pp = row.degree("pipeline parallelism");
  step.recompute = true;
  if (static_cast<double>(step.tp) * step.dp * step.pp != static_cast<double>(row.count("# GPUs")))
    row.refuse("# GPUs", concat(step.tp, " x ", step.dp, " x ", step.pp, ", the degrees' product"));
  run.measured.measured_seconds = row.seconds("iteration time (ms)", 1e-3);
  run.choice =
      join({row.text("# GPUs"), row.text("global batch"), row.text("hidden size"), row.text("# layers"), row.text("sequence length")}, " ");
  return run;
}

/// llm-foundry: MPT under FSDP, which is ZeRO 3 (FULL_SHARD) or 2 (SHARD_GRAD_OP) over all devices.
PublicRun llm_foundry_run(const Row& row) {
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
  step.dp = row.degree("gpus");
  step.zero = row.one_of("sharding_strategy", {"FULL_SHARD", "SHARD_GRAD_OP"}) == 0 ? 3 : 2;
  step.recompute = row.one_of("activation_checkpointing", {"False", "True"}) == 1;
  step.gradient_bytes = row.one_of("mp_mode", {"PURE", "DEFAULT"}) == 0 ? 2 : 4;
  run.measured.measured_seconds = row.seconds("step_seconds", 1);
  run.choice = join({row.text("gpu"), row.text("model"), row.text("seq_len_tokens"), row.text("gpus")}, " ");
  run.samples = static_cast<double>(step.global_batch);
  return run;
}

}  // namespace

std::vector<PublicRun> read_public_runs(const std::string& format, const std::string& path) {
  const bool is_vtrain = format == "vtrain";
  if (!is_vtrain && format != "llm-foundry")
    fail(ErrorCode::kBadInput, "no format '", format, "'", did_you_mean(format, {"vtrain", "llm-foundry"}),
         "; there are: vtrain llm-foundry");
  const std::string content = read_small_file(path, kMostBytes);
  const std::vector<std::string> lines = split(content.starts_with("\xEF\xBB\xBF") ? content.substr(3) : content, '\n');
  std::vector<std::string> header;
  std::vector<PublicRun> runs;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (trim(lines[i]).empty()) continue;
    std::vector<std::string> fields = split(lines[i], ',');
    if (header.empty()) {
      for (std::string& name : fields) header.push_back(trim(name));
      continue;
    }
    const Row row(header, std::move(fields), concat(path, ":", i + 1));
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

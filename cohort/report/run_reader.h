#pragma once
// A run folder as plain values: RUN/config.toml and RUN/metrics.jsonl. Formats: docs/formats/metrics.md. Torch-free.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace cohort::page {

/// A number that a line does not have, or that was not finite when it was written, is NaN; a whole number that it does not have is nullopt.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct StartRecord {
  int64_t world_size = 1;
  std::string layout;           ///< "dp=2, zero=1": what differs from one process; empty when nothing does.
  std::string tensor_parallel;  ///< What it divides and what not, as a sentence; empty without.
  std::optional<int64_t> parameters, train_samples, global_batch, steps;
  std::string model, data, version, torch, host, started;
  bool has_own_loss = false;  ///< Of the model; else losses are cross-entropies.
};

struct StepRecord {
  int64_t step = 0;
  double loss = kUnknown;
  double step_seconds = kUnknown;
  double samples_per_second = kUnknown;
  double data_seconds = kUnknown, compute_seconds = kUnknown, exchange_seconds = kUnknown, optimizer_seconds = kUnknown;
  double learning_rate = kUnknown;
  double gradient_norm = kUnknown;
};

struct EvalRecord {
  int64_t step = 0;
  double val_loss = kUnknown;
  double val_error = kUnknown;  ///< A fraction.
};

/// A measurement of the gradient noise scale: what the step measured, and the running means after it.
struct NoiseRecord {
  int64_t step = 0;
  double small_batch = kUnknown, large_batch = kUnknown, small_squared = kUnknown, large_squared = kUnknown;
  double gradient_squared = kUnknown, trace = kUnknown, noise_scale = kUnknown;
};

/// A checkpoint that was written, or that a run went on from.
struct CheckpointRecord {
  int64_t step = 0;
  std::string path;
};

/// What a rank holds of a model that is divided over ranks.
struct PartRecord {
  std::string data, pipe, tensor;   ///< Place on each axis: "1 of 2".
  std::vector<std::string> layers;  ///< Of which it holds all, or its part of the tensors.
  std::vector<int64_t> stages;      ///< Empty without pipeline workers.
  double waited_seconds = kUnknown;
  std::optional<int64_t> most_kept_micro_batches;
};

/// The plan of a pipeline and the forecast of its step.
struct PipelineRecord {
  struct Stage {
    std::vector<std::string> layers;
    std::optional<int64_t> worker;
    double forward_seconds = kUnknown, backward_input_seconds = kUnknown, backward_weight_seconds = kUnknown;
  };
  std::string schedule;
  std::vector<Stage> stages;
  std::optional<int64_t> micro_batches;
  double predicted_step_seconds = kUnknown, predicted_bubble = kUnknown;
  std::string chart_svg;  ///< As it stands in the file: see plain_svg.h.
};

/// Totals of one rank since its process began.
struct RankRecord {
  int64_t rank = 0;
  std::string host;
  std::optional<int64_t> pid, samples, peak_memory_bytes;
  std::optional<int64_t> weight_bytes, gradient_bytes, optimizer_bytes;  ///< By the formula of the layout.
  std::optional<int64_t> predicted_bytes;                                ///< The three together.
  std::optional<int64_t> peak_tensor_bytes, memory_limit_bytes;          ///< As the allocator counted; with --memory-limit.
  std::optional<PartRecord> part;                                        ///< None where every rank has the whole model.
  double data_seconds = kUnknown, compute_seconds = kUnknown, exchange_seconds = kUnknown, optimizer_seconds = kUnknown;
};

struct ConfusionRecord {
  int64_t step = 0;
  std::vector<std::string> classes;
  std::vector<std::vector<int64_t>> counts;  ///< [true class][predicted class], square.
};

struct SampleRecord {
  int64_t step = 0;
  std::string prompt;
  std::string text;  ///< What the model wrote after the prompt.
};

struct DoneRecord {
  int64_t step = 0;
  double loss = kUnknown, val_loss = kUnknown, val_error = kUnknown;
  double seconds = kUnknown;  ///< Of the process that ended the run.
  double predicted_step_seconds = kUnknown, measured_step_seconds = kUnknown;
  std::vector<int64_t> peak_memory_bytes;  ///< One a rank.
  std::optional<int64_t> skipped_steps;    ///< Of fp16, for gradients that overflowed.
};

/// How a process of the run failed.
struct FailureRecord {
  int64_t exit_code = 0;
  std::string cause;
};

/// A setting that a resume changed.
struct ChangeRecord {
  int64_t step = 0;  ///< From here on.
  std::string setting, from, to;
};

enum class RunState {
  kOpen,  ///< No end is recorded: it is still going, or it was killed.
  kDone,
  kInterrupted,
  kFailed,
};

struct ConfigValue {
  std::string key;    ///< "optimizer.lr" for a value inside of a table.
  std::string value;  ///< As TOML writes it; strings without their quotes.
};

struct RunRecord {
  std::string folder;
  std::vector<ConfigValue> config;  ///< In the order of the file; empty where the run has none.
  RunState state = RunState::kOpen;
  std::optional<StartRecord> start;
  std::vector<StepRecord> steps;   ///< Steps rise; what a resume undid is not here.
  std::vector<EvalRecord> evals;   ///< Steps rise.
  std::vector<NoiseRecord> noise;  ///< Steps rise; empty without --noise-scale.
  std::vector<CheckpointRecord> checkpoints, resumes;
  std::vector<RankRecord> ranks;           ///< Of the last process.
  std::optional<PipelineRecord> pipeline;  ///< Of the last process.
  std::optional<ConfusionRecord> confusion;
  std::optional<SampleRecord> sample;
  std::string exchange_advice;     ///< One sentence: whether compressing gradients would pay.
  std::optional<DoneRecord> done;  ///< Where state is kDone.
  FailureRecord failure;           ///< Where state is kFailed.
  std::vector<ChangeRecord> changes;
  int64_t missing_lines = 0;  ///< Of the file: what a full disk did not take.
};

/// Reads RUN/metrics.jsonl, and RUN/config.toml where it is there. A last line that is not whole, as a kill leaves it, is skipped; events
/// and keys that are not known are ignored. Error(kBadInput) with file and line otherwise, or where there is no metrics.jsonl.
RunRecord read_run(const std::string& run);

/// The value of a key of config.toml, "" where it has none.
std::string config_value(const RunRecord& run, const std::string& key);

}  // namespace cohort::page

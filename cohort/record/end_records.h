#pragma once
// Records at the end of a run.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

/// The part of a divided model on one rank.
struct PartRecord {
  std::string data, pipe, tensor;   ///< Position on each axis: "1 of 2".
  std::vector<std::string> layers;  ///< Layers held whole or in part.
  std::vector<int64_t> stages;      ///< Empty without pipeline workers.
  double waited_seconds = kUnknown;
  std::optional<int64_t> most_kept_micro_batches;

  void describe(auto& fields) {
    fields.text("data", data);
    fields.text("pipe", pipe);
    fields.text("tensor", tensor);
    fields.texts("layers", layers);
    fields.counts_if_any("stages", stages);
    fields.number_if_known("waited_seconds", waited_seconds);
    fields.count("most_kept_micro_batches", most_kept_micro_batches);
  }
};

/// Totals of one rank since its process began.
struct RankRecord {
  int64_t rank = 0;
  std::string host;
  std::string device;  ///< "": all ranks are on the CPU.
  std::optional<int64_t> pid, samples;
  double data_seconds = kUnknown, compute_seconds = kUnknown, exchange_seconds = kUnknown, optimizer_seconds = kUnknown;
  std::optional<int64_t> peak_memory_bytes;
  std::optional<int64_t> weight_bytes, gradient_bytes, optimizer_bytes;  ///< Predicted by the layout.
  std::optional<int64_t> memory_limit_bytes, peak_tensor_bytes;          ///< Of the allocator; with --memory-limit.
  std::optional<PartRecord> part;                                        ///< Nullopt: every rank has the whole model.

  void describe(auto& fields) {
    fields.count("rank", rank);
    fields.text("host", host);
    fields.text_if_any("device", device);
    fields.count("pid", pid);
    fields.count("samples", samples);
    fields.number("data_seconds", data_seconds);
    fields.number("compute_seconds", compute_seconds);
    fields.number("exchange_seconds", exchange_seconds);
    fields.number("optimizer_seconds", optimizer_seconds);
    fields.count("peak_memory_bytes", peak_memory_bytes);
    fields.count("predicted_weight_bytes", weight_bytes);
    fields.count("predicted_gradient_bytes", gradient_bytes);
    fields.count("predicted_optimizer_bytes", optimizer_bytes);
    fields.count("memory_limit_bytes", memory_limit_bytes);
    fields.count("peak_tensor_bytes", peak_tensor_bytes);
    fields.object("part", part);
  }
};

struct RanksRecord {
  static constexpr char kEvent[] = "ranks";
  std::vector<RankRecord> ranks;

  void describe(auto& fields) { fields.required_list("ranks", ranks); }
};

struct ConfusionRecord {
  static constexpr char kEvent[] = "confusion";
  int64_t step = 0;
  std::vector<std::string> classes;
  std::vector<std::vector<int64_t>> counts;  ///< [true class][predicted class], square.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.texts("classes", classes);
    fields.count_rows("counts", counts);
  }
};

/// A misclassified sample as a picture.
struct MistakeRecord {
  int64_t sample = 0;             ///< Index among the validation samples.
  std::string label, predicted;   ///< Names of classes.
  double probability = kUnknown;  ///< Predicted probability of `predicted`.
  std::string png;                ///< Base64.

  void describe(auto& fields) {
    fields.count("sample", sample);
    fields.text("class", label);
    fields.text("predicted", predicted);
    fields.number("probability", probability);
    fields.text("png", png);
  }
};

/// The most confident mistakes of the last evaluation.
struct MistakesRecord {
  static constexpr char kEvent[] = "mistakes";
  int64_t step = 0;
  std::vector<MistakeRecord> pictures;  ///< By falling confidence.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.required_list("pictures", pictures);
  }
};

struct SampleRecord {
  static constexpr char kEvent[] = "sample";
  int64_t step = 0;
  std::string prompt;
  std::string text;  ///< What the model wrote after the prompt.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("prompt", prompt);
    fields.text("text", text);
  }
};

struct DoneRecord {
  static constexpr char kEvent[] = "done";
  int64_t step = 0;
  double loss = kUnknown, val_loss = kUnknown, val_error = kUnknown;
  double val_precision = kUnknown, test_precision = kUnknown;  ///< Mean average precisions; for data with labels.
  double seconds = kUnknown;                                   ///< Wall time of the last process.
  double predicted_step_seconds = kUnknown, measured_step_seconds = kUnknown;
  double first_step_seconds = kUnknown;    ///< From the start of the command.
  std::vector<int64_t> peak_memory_bytes;  ///< Per rank.
  std::string run;
  std::optional<int64_t> skipped_steps;  ///< Skipped by fp16 because gradients overflowed.
  std::optional<double> noise_scale;     ///< Nullopt: not measured.
  double virtual_seconds = kUnknown;     ///< On the clock of --virtual.
  std::string reason;                    ///< Why it ended: "steps", "goal" or "patience"; "" in older files.
  std::optional<int64_t> best_step;      ///< Saved step with the lowest validation loss; nullopt: none evaluated.
  double best_val_loss = kUnknown;
  double guess_val_error = kUnknown, guess_val_precision = kUnknown;  ///< Of a constant prediction.
  std::string learnt_nothing;                                         ///< Advice where the model is no better than that.
  std::optional<int64_t> test_samples;                                ///< Nullopt: the test set was not evaluated.
  double test_loss = kUnknown, test_error = kUnknown;
  std::map<std::string, double> metrics, test_metrics;  ///< Requested metrics by name.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.number("loss", loss);
    fields.number("val_loss", val_loss);
    fields.number("val_error", val_error), fields.number_if_known("val_precision", val_precision);
    fields.number("seconds", seconds);
    fields.number("predicted_step_seconds", predicted_step_seconds);
    fields.number("measured_step_seconds", measured_step_seconds);
    fields.number("first_step_seconds", first_step_seconds);
    fields.counts("peak_memory_bytes", peak_memory_bytes);
    fields.text("run", run);
    fields.count("skipped_steps", skipped_steps);
    fields.number("noise_scale", noise_scale);
    fields.number_if_known("virtual_seconds", virtual_seconds);
    fields.text_if_any("reason", reason);
    fields.count("best_step", best_step);
    fields.number_if_known("best_val_loss", best_val_loss);
    fields.named_numbers_if_any("metrics", metrics);
    fields.number_if_known("guess_val_error", guess_val_error), fields.number_if_known("guess_val_precision", guess_val_precision);
    fields.text_if_any("learnt_nothing", learnt_nothing);
    fields.count("test_samples", test_samples);
    fields.number_if_known("test_loss", test_loss);
    fields.number_if_known("test_error", test_error), fields.number_if_known("test_precision", test_precision);
    fields.named_numbers_if_any("test_metrics", test_metrics);
  }
};

/// The user stopped the run.
struct InterruptedRecord {
  static constexpr char kEvent[] = "interrupted";
  std::optional<int64_t> step;
  std::string checkpoint, run;

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("checkpoint", checkpoint);
    fields.text("run", run);
  }
};

/// A process of the run failed.
struct FailureRecord {
  static constexpr char kEvent[] = "failed";
  std::optional<int64_t> exit_code;
  std::string cause, ended, run;
  std::string reason;  ///< "diverged", "killed" or "failed"; "" in older files.

  void describe(auto& fields) {
    fields.count("exit_code", exit_code);
    fields.text("cause", cause);
    fields.text("ended", ended);
    fields.text("run", run);
    fields.text_if_any("reason", reason);
  }
};

}  // namespace cohort

#pragma once
// Records during training.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

struct StepRecord {
  static constexpr char kEvent[] = "step";
  int64_t step = 0;  ///< From 1.
  double loss = kUnknown, step_seconds = kUnknown, samples_per_second = kUnknown;
  double data_seconds = kUnknown, compute_seconds = kUnknown, exchange_seconds = kUnknown, optimizer_seconds = kUnknown;
  double learning_rate = kUnknown;
  double gradient_norm = kUnknown;    ///< Unknown without clipping.
  double virtual_seconds = kUnknown;  ///< On the clock of --virtual.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.number("loss", loss);
    fields.number("step_seconds", step_seconds);
    fields.number("samples_per_second", samples_per_second);
    fields.number("data_seconds", data_seconds);
    fields.number("compute_seconds", compute_seconds);
    fields.number("exchange_seconds", exchange_seconds);
    fields.number("optimizer_seconds", optimizer_seconds);
    fields.number("learning_rate", learning_rate);
    fields.number_if_known("gradient_norm", gradient_norm);
    fields.number_if_known("virtual_seconds", virtual_seconds);
  }
};

struct EvalRecord {
  static constexpr char kEvent[] = "eval";
  int64_t step = 0;
  double val_loss = kUnknown;
  double val_error = kUnknown;            ///< A fraction.
  double val_precision = kUnknown;        ///< Mean average precision; for data with labels.
  double virtual_seconds = kUnknown;      ///< On the clock of --virtual.
  std::map<std::string, double> metrics;  ///< Requested metrics by name.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.number("val_loss", val_loss);
    fields.number("val_error", val_error);
    fields.number_if_known("val_precision", val_precision);
    fields.number_if_known("virtual_seconds", virtual_seconds);
    fields.named_numbers_if_any("metrics", metrics);
  }
};

/// A measurement of the gradient noise scale, and the running means after it.
struct NoiseRecord {
  static constexpr char kEvent[] = "noise_scale";
  int64_t step = 0;                                           ///< From 1.
  double small_batch = kUnknown, large_batch = kUnknown;      ///< Samples.
  double small_squared = kUnknown, large_squared = kUnknown;  ///< Squared norms of this step's mean gradients.
  double gradient_squared = kUnknown, trace = kUnknown;       ///< Running means of |G|^2 and tr(Sigma) per sample.
  double noise_scale = kUnknown;                              ///< trace / gradient_squared in samples; may be unknown.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.number("small_batch", small_batch);
    fields.number("large_batch", large_batch);
    fields.number("small_squared", small_squared);
    fields.number("large_squared", large_squared);
    fields.number("gradient_squared", gradient_squared);
    fields.number("trace", trace);
    fields.number("noise_scale", noise_scale);
  }
};

/// New shares of the global batch from a step on.
struct SharesRecord {
  static constexpr char kEvent[] = "shares";
  int64_t from_step = 0;
  std::vector<double> shares;  ///< Per rank.

  void describe(auto& fields) {
    fields.count("from_step", from_step);
    fields.numbers("shares", shares);
  }
};

struct CheckpointRecord {
  static constexpr char kEvent[] = "checkpoint";
  int64_t step = 0;
  std::string path;
  double seconds = kUnknown;  ///< Saving time.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("path", path);
    fields.number("seconds", seconds);
  }
};

struct CheckpointFailedRecord {
  static constexpr char kEvent[] = "checkpoint_failed";
  int64_t step = 0;
  std::string cause;

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("cause", cause);
  }
};

struct MissingLinesRecord {
  static constexpr char kEvent[] = "missing_lines";
  int64_t lines = 0;  ///< Lines lost to a full disk since the line before.

  void describe(auto& fields) { fields.count("lines", lines); }
};

}  // namespace cohort

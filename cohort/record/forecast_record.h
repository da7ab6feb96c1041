#pragma once
// Predicted cost of a step. Keys of a worker are those of plan.json (docs/formats/plan.md), from which it is read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

struct ForecastRecord {
  static constexpr char kEvent[] = "forecast";
  /// Memory of the worker's largest rank.
  struct Memory {
    std::optional<int64_t> weights, gradients, optimizer, buffers, buckets, stash, recompute, overhead, total;

    void describe(auto& fields) {
      fields.count("weights", weights);
      fields.count("gradients", gradients);
      fields.count("optimizer", optimizer);
      fields.count("buffers", buffers);
      fields.count("buckets", buckets);
      fields.count("stash", stash);
      fields.count("recompute", recompute);
      fields.count("overhead", overhead);
      fields.count("total", total);
    }
  };
  /// The ranks of one position on the pipeline axis; seconds per step.
  struct Worker {
    std::vector<int64_t> ranks;
    std::vector<std::string> layers;
    double forward_seconds = kUnknown, backward_seconds = kUnknown, tensor_exchange_seconds = kUnknown, exchange_seconds = kUnknown,
           exposed_exchange_seconds = kUnknown, update_seconds = kUnknown, idle_seconds = kUnknown;
    std::optional<Memory> memory_bytes;

    void describe(auto& fields) {
      fields.counts("ranks", ranks);
      fields.texts("layers", layers);
      fields.number("forward_seconds", forward_seconds);
      fields.number("backward_seconds", backward_seconds);
      fields.number("tensor_exchange_seconds", tensor_exchange_seconds);
      fields.number("exchange_seconds", exchange_seconds);
      fields.number("exposed_exchange_seconds", exposed_exchange_seconds);
      fields.number("update_seconds", update_seconds);
      fields.number("idle_seconds", idle_seconds);
      fields.object("memory_bytes", memory_bytes);
    }
  };
  std::string source;  ///< "--profile FILE", "--layout auto", the name of a plan.
  double predicted_step_seconds = kUnknown;
  std::vector<double> interval;  ///< Low and high end of the 90 % prediction interval.
  std::string interval_from;     ///< "default", or "calibration: ..." with its runs.
  std::optional<int64_t> predicted_peak_memory_bytes;
  double predicted_equal_waste = kUnknown, predicted_equal_step_seconds = kUnknown;  ///< See WasteRecord; for uneven plans.
  std::vector<Worker> workers;

  bool has_interval() const { return interval.size() == 2; }

  void describe(auto& fields) {
    fields.text("source", source);
    fields.number("predicted_step_seconds", predicted_step_seconds);
    fields.numbers("interval", interval);
    fields.text("interval_from", interval_from);
    fields.count("predicted_peak_memory_bytes", predicted_peak_memory_bytes);
    fields.number_if_known("predicted_equal_waste", predicted_equal_waste);
    fields.number_if_known("predicted_equal_step_seconds", predicted_equal_step_seconds);
    fields.list("workers", workers);
  }
};

}  // namespace cohort

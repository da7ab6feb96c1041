#pragma once
// What the tests of the store share.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

#include "cohort/base/files/file.h"
#include "cohort/study/store/store.h"
#include "tests/support/errors.h"
#include "tests/support/places.h"

namespace cohort::study {

inline StudySpec small_spec() {
  StudySpec spec;
  spec.name = "small";
  spec.data = "fashion-mnist";
  spec.model = "fc:width=64,depth=3";
  spec.optimizer = "sgd";
  spec.dataset_name = "fashion_mnist";
  spec.model_name = "fc_64x3";
  spec.goals = {{kValError, 0.15}, {kValLoss, 0.4}};
  const SearchSpace space = {{.name = "learning_rate", .scale = Hyperparameter::Scale::kLog, .minimum = 1e-3, .maximum = 3.2}};
  spec.batches = {{8, 5, 1000, space}, {64, 5, 500, space}};
  spec.seed = 8999999999999999ULL;
  return spec;
}

/// Every value follows from id and step, so that a reader can tell whether all is there.
inline Trial trial_of(int64_t id, int64_t num_measurements, double seconds = 0.1) {
  Trial trial{.id = id,
              .parameters = {{"learning_rate", 0.1 + 1.0 / static_cast<double>(id + 3)}},
              .status = TrialStatus::kComplete,
              .steps = num_measurements,
              .seconds = seconds};
  for (int64_t step = 0; step < num_measurements; ++step) {
    Measurement& measurement = trial.measurements.emplace_back();
    measurement.step = step * 3;
    measurement.values[kValError] = 1.0 / static_cast<double>(id + step + 2);
    if (step % 2 == 0) measurement.values[kValLoss] = std::sqrt(static_cast<double>(id + step));
  }
  return trial;
}

inline bool same_bits(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

inline bool same(const Trial& a, const Trial& b) {
  if (a.id != b.id || a.status != b.status || a.steps != b.steps || a.seconds != b.seconds || a.parameters != b.parameters ||
      a.measurements.size() != b.measurements.size())
    return false;
  for (size_t i = 0; i < a.measurements.size(); ++i) {
    if (a.measurements[i].step != b.measurements[i].step) return false;
    for (int metric = 0; metric < kNumMetrics; ++metric)
      if (!same_bits(a.measurements[i].values[metric], b.measurements[i].values[metric])) return false;
  }
  return true;
}

}  // namespace cohort::study

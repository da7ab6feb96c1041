#include "cohort/study/analysis/course.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

/// The first measurement in memory at or after `step`.
size_t index_of(const Trial& trial, int64_t step) {
  const auto found = std::lower_bound(trial.measurements.begin(), trial.measurements.end(), step,
                                      [](const Measurement& one, int64_t at) { return one.step < at; });
  return static_cast<size_t>(found - trial.measurements.begin());
}

WholeCourse::Place place_of(const Trial& trial, int64_t step) {
  const size_t index = index_of(trial, step);
  if (index == trial.measurements.size() || trial.measurements[index].step != step)
    fail(ErrorCode::kFailed, "trial ", trial.id, ": the measurement at step ", step, " was not kept");
  return trial.whole->places[index];
}

}  // namespace

int64_t num_measurements(const Trial& trial) {
  return trial.whole ? trial.whole->num_measurements : static_cast<int64_t>(trial.measurements.size());
}

MetricSet measured_in(const Trial& trial) {
  if (trial.whole) return trial.whole->measured;
  MetricSet measured;
  for (const Measurement& measurement : trial.measurements)
    for (size_t metric = 0; metric < kNumMetrics; ++metric) measured[metric] = measured[metric] || !std::isnan(measurement.values[metric]);
  return measured;
}

int64_t num_evaluations(const Trial& trial, int64_t step) {
  if (trial.whole) return place_of(trial, step).number;
  return std::count_if(trial.measurements.begin(), trial.measurements.end(),
                       [&](const Measurement& measurement) { return measurement.step > 0 && measurement.step <= step; });
}

int64_t step_before(const Trial& trial, int64_t step) {
  if (trial.whole) return place_of(trial, step).step_before;
  const size_t index = index_of(trial, step);
  return index == 0 ? 0 : trial.measurements[index - 1].step;
}

void check_kept(const Trial& trial, Metric metric) {
  if (!trial.whole || trial.whole->kept[metric]) return;
  fail(ErrorCode::kFailed, "trial ", trial.id, ": measurements that a question about ", name_of(metric), " needs were not kept");
}

}  // namespace cohort::study

#include "cohort/report/noise_run.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort::report {

std::vector<NoisePoint> noise_points(const RunRecord& run) {
  std::vector<study::NoiseMeasurement> measurements;
  for (const NoiseRecord& one : run.noise) {
    const bool sizes = one.small_batch > 0 && one.small_batch < one.large_batch && std::isfinite(one.large_batch);
    if (sizes && std::isfinite(one.small_squared) && std::isfinite(one.large_squared))
      measurements.push_back({one.step, one.small_squared, one.small_batch, one.large_squared, one.large_batch});
  }
  std::vector<NoisePoint> points;
  for (const study::NoiseWindow& window : study::noise_windows(measurements)) {
    NoisePoint point{.window = window};
    double sum = 0, count = 0;
    for (const StepRecord& step : run.steps)
      if (step.step >= window.first_step && step.step <= window.last_step && std::isfinite(step.loss)) sum += step.loss, ++count;
    if (count > 0) point.loss = sum / count;
    for (const EvalRecord& eval : run.evals) {
      if (eval.step > window.last_step) break;
      point.val_loss = eval.val_loss;
      point.val_error = eval.val_error;
    }
    points.push_back(point);
  }
  return points;
}

std::vector<NoisePoint> read_noise_run(const std::string& run) {
  std::vector<NoisePoint> points = noise_points(read_run(run));
  if (points.empty())
    fail(ErrorCode::kBadInput, run,
         name_settings(" has no measurement of the gradient noise scale; train with --noise-scale 10 and two workers, or with "
                       "--accumulate 2"));
  return points;
}

std::string noise_note(const std::vector<NoisePoint>& points) {
  Json list = Json::array();
  for (const NoisePoint& point : points)
    list.push_back(Json{{"loss", finite_json(point.loss)},
                        {"noise_scale", finite_json(point.window.noise_scale)},
                        {"batch", finite_json(point.window.batch)},
                        {"step", point.window.last_step},
                        {"first_step", point.window.first_step},
                        {"standard_error", finite_json(point.window.standard_error)},
                        {"gradient_squared", finite_json(point.window.mean.gradient_squared)},
                        {"trace", finite_json(point.window.mean.trace)},
                        {"val_loss", finite_json(point.val_loss)},
                        {"val_error", finite_json(point.val_error)}});
  return list.dump();
}

}  // namespace cohort::report

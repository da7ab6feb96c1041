// The gradient noise scale over the steps of a run: the running value, and the ratio of averages in each window with its error; as numbers
// and as a section of the report.

#include "cohort/report/noise_run.h"

#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

/// The middle of a window on a logarithmic axis.
double middle(const study::NoiseWindow& window) {
  return std::sqrt(static_cast<double>(window.first_step) * static_cast<double>(window.last_step));
}

std::string chart_of(const RunRecord& run, const std::vector<NoisePoint>& points) {
  LineChart chart;
  chart.id = "noise-scale";
  chart.title = "Gradient noise scale, samples";
  chart.wide = chart.logarithmic = true;
  chart.x_high = static_cast<double>(run.noise.back().step);
  Curve running, stretches;
  for (const NoiseRecord& one : run.noise) running.push_back({static_cast<double>(one.step), one.noise_scale});
  for (const NoisePoint& point : points) stretches.push_back({middle(point.window), point.window.noise_scale});
  chart.series.push_back({"running mean", "c-norm", running, true, false, ""});
  chart.series.push_back({"mean of a stretch", "c-norm", stretches, false, true, significant(stretches.back().y, 3)});
  chart.description =
      concat("Gradient noise scale of ", plural(static_cast<int64_t>(points.size()), "stretch"), " of the training, ",
             significant(stretches.front().y, 3), " samples in the first and ", significant(stretches.back().y, 3), " in the last. ");
  return line_chart(chart);
}

std::string table_of(const std::vector<NoisePoint>& points) {
  Table out{.columns = {{"steps", true},
                        {"measurements", true},
                        {"training loss", true},
                        {"|G|\u00b2", true},
                        {"tr \u03a3", true},
                        {"noise scale", true},
                        {"\u00b1", true},
                        {"batch", true}}};
  for (const NoisePoint& point : points) {
    const study::NoiseWindow& window = point.window;
    out.rows.push_back({concat(with_commas(window.first_step), " to ", with_commas(window.last_step)), with_commas(window.num_measurements),
                        significant(point.loss, 3), significant(window.mean.gradient_squared, 3), significant(window.mean.trace, 3),
                        significant(window.noise_scale, 3), significant(window.standard_error, 2), significant(window.batch, 4)});
  }
  return table(out, "The gradient noise scale by stretches of the training");
}

}  // namespace

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

std::string noise_section(const RunRecord& run) {
  const std::vector<NoisePoint> points = noise_points(run);
  if (points.empty()) return "";
  return section("noise", "Gradient noise scale",
                 "About how many samples make a batch whose mean gradient is as much signal as noise: tr \u03a3 / |G|\u00b2, a ratio of "
                 "averages, with one standard error. It suggests where larger batches stop helping, but only as an indication: it has "
                 "missed the measured critical batch size by factors of ten in either direction. A dash: noise hid the gradient.",
                 chart_of(run, points) + table_of(points));
}

}  // namespace cohort::report

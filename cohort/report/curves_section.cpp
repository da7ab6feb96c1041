// The curves of a training over its steps: losses, errors and metrics, speed, learning rate and gradient norm.

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

constexpr double kSmoothingShare = 0.01;  // The kernel is two-sided, so it covers about twice this share of the run.
constexpr double kLogarithmicRatio = 30;  // From this range of the smoothed loss on the axis is logarithmic.
constexpr size_t kMinPointsToSmooth = 20;

template <typename Record>
Curve curve_of(const std::vector<Record>& records, double Record::* value, double factor = 1) {
  Curve curve;
  for (const Record& record : records) curve.push_back({static_cast<double>(record.step), factor * (record.*value)});
  return curve;
}

bool has_value(const Curve& curve) {
  return std::any_of(curve.begin(), curve.end(), [](const Point& point) { return std::isfinite(point.y); });
}

double smoothing_scale(size_t num_points) { return std::max(1.0, kSmoothingShare * static_cast<double>(num_points)); }

/// The last finite value.
double last_value(const Curve& curve) {
  for (auto point = curve.rbegin(); point != curve.rend(); ++point) {
    if (std::isfinite(point->y)) return point->y;
  }
  return kUnknown;
}

std::vector<Marker> markers(const RunRecord& run) {
  std::vector<Marker> out;
  for (const CheckpointRecord& one : run.checkpoints)
    out.push_back({Marker::Kind::kCheckpoint, static_cast<double>(one.step), concat("checkpoint at step ", with_commas(one.step))});
  for (const ResumeRecord& one : run.resumes)
    out.push_back({Marker::Kind::kResume, static_cast<double>(one.step), concat("resumed at step ", with_commas(one.step))});
  return out;
}

/// Adds the raw values as a faint line and a smoothed curve over them; where they are few, the raw values alone.
void add_smoothed(LineChart& chart, const std::string& name, const std::string& colour, const Curve& raw, int digits) {
  if (raw.size() < kMinPointsToSmooth) {
    chart.series.push_back({name, colour, raw, false, true, significant(last_value(raw), digits)});
    return;
  }
  const Curve smoothed = smooth(raw, smoothing_scale(raw.size()));
  chart.series.push_back({"each step", colour, raw, true, false, ""});
  chart.series.push_back({name, colour, smoothed, false, false, significant(last_value(smoothed), digits)});
}

std::string change(const std::string& name, const Curve& curve) {
  if (!has_value(curve)) return "";
  const auto first = std::find_if(curve.begin(), curve.end(), [](const Point& point) { return std::isfinite(point.y); });
  return concat(name, " goes from ", significant(first->y, 3), " at step ", significant(first->x, 3), " to ",
                significant(last_value(curve), 3), ". ");
}

LineChart base_chart(const RunRecord& run, const std::string& id, const std::string& title) {
  LineChart chart;
  chart.id = id;
  chart.title = title;
  double first = std::numeric_limits<double>::infinity(), last = 0;
  const auto extend = [&](double step) {
    first = std::min(first, step);
    last = std::max(last, step);
  };
  if (!run.steps.empty()) extend(static_cast<double>(run.steps.front().step)), extend(static_cast<double>(run.steps.back().step));
  if (!run.evals.empty()) extend(static_cast<double>(run.evals.front().step)), extend(static_cast<double>(run.evals.back().step));
  // An axis that would begin near 0 begins at 0.
  chart.x_low = first <= 0.1 * last || last <= 20 ? 0 : first;
  chart.x_high = last;
  return chart;
}

std::string loss_chart(const RunRecord& run) {
  LineChart chart = base_chart(run, "loss", "Loss");
  chart.wide = true;
  const Curve training = curve_of(run.steps, &StepRecord::loss), validation = curve_of(run.evals, &EvalRecord::val_loss);
  add_smoothed(chart, "training", "c-train", training, 3);
  chart.series.push_back({"validation", "c-val", validation, false, true, significant(last_value(validation), 3)});
  chart.markers = markers(run);
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Point& point : smoothed_loss(run)) {
    if (std::isfinite(point.y)) low = std::min(low, point.y), high = std::max(high, point.y);
  }
  chart.logarithmic = low > 0 && high >= kLogarithmicRatio * low;
  chart.description = change("Training loss", smoothed_loss(run)) + change("Validation loss", validation);
  return line_chart(chart);
}

/// A chart of one validation curve, in percent where the chart's unit is "%". `subject` begins the description.
std::string validation_chart(LineChart chart, const Curve& curve, const std::string& subject) {
  const double last = last_value(curve);
  chart.series.push_back({"validation", "c-val", curve, false, true, chart.unit.empty() ? significant(last, 3) : percent_text(last / 100)});
  chart.description = change(subject, curve);
  return line_chart(chart);
}

std::string error_chart(const RunRecord& run, const Summary& summary) {
  LineChart chart = base_chart(run, "error", summary.is_text ? "Next " + summary.unit + " wrong" : "Validation error");
  if (!summary.is_regression) chart.unit = "%";
  return validation_chart(chart, curve_of(run.evals, &EvalRecord::val_error, summary.is_regression ? 1 : 100),
                          summary.is_regression ? "In deviations of the targets" : "Percent");
}

/// The charts of the metrics that were requested by name.
std::string metric_charts(const RunRecord& run) {
  std::string charts;
  int number = 0;
  if (run.evals.empty()) return charts;
  for (const auto& [name, last] : run.evals.back().metrics) {
    Curve curve;
    for (const EvalRecord& eval : run.evals)
      if (const auto found = eval.metrics.find(name); found != eval.metrics.end())
        curve.push_back({static_cast<double>(eval.step), found->second});
    charts += validation_chart(base_chart(run, concat("metric-", ++number), name), curve, name);
  }
  return charts;
}

/// A chart of one value of the steps, smoothed and from 0.
std::string step_chart(const RunRecord& run, const std::string& name, const char* title, const char* subject, double StepRecord::* value) {
  LineChart chart = base_chart(run, name, title);
  const Curve curve = curve_of(run.steps, value);
  add_smoothed(chart, name, "c-" + name, curve, 3);
  chart.from_zero = true;
  chart.description = change(subject, curve);
  return line_chart(chart);
}

std::string rate_chart(const RunRecord& run) {
  LineChart chart = base_chart(run, "rate", "Learning rate");
  const Curve curve = curve_of(run.steps, &StepRecord::learning_rate);
  chart.series.push_back({"rate", "c-rate", curve, false, run.steps.size() == 1, significant(last_value(curve), 3)});
  chart.from_zero = true;
  chart.description = change("Learning rate", curve);
  return line_chart(chart);
}

}  // namespace

Curve smoothed_loss(const RunRecord& run) { return smooth(curve_of(run.steps, &StepRecord::loss), smoothing_scale(run.steps.size())); }

std::string curves_section(const RunRecord& run, const Summary& summary) {
  const auto num_lost = std::count_if(run.steps.begin(), run.steps.end(), [](const StepRecord& step) { return !std::isfinite(step.loss); });
  std::string intro;
  if (run.steps.size() >= kMinPointsToSmooth)
    intro = concat("The faint line is each step", run.steps.size() > 600 ? ", thinned with its peaks kept" : "",
                   "; the strong one is smoothed over about ", plural(std::llround(2 * smoothing_scale(run.steps.size())), "recorded step"),
                   ".");
  if (num_lost > 0)
    intro += concat(intro.empty() ? "" : " ", "The loss of ", plural(num_lost, "step"), " was not finite: the curve has a gap there.");
  if (run.evals.empty() && !run.steps.empty()) intro += std::string(intro.empty() ? "" : " ") + "No evaluation was recorded.";
  const std::string small = error_chart(run, summary) +
                            validation_chart(base_chart(run, "precision", "Average precision"),
                                             curve_of(run.evals, &EvalRecord::val_precision), "The mean over labels") +
                            metric_charts(run) + step_chart(run, "speed", "Samples per second", "Speed", &StepRecord::samples_per_second) +
                            rate_chart(run) + step_chart(run, "norm", "Gradient norm", "Gradient norm", &StepRecord::gradient_norm);
  const std::string content = loss_chart(run) + (small.empty() ? "" : element("div", {{"class", "charts"}}, small) + "\n");
  return content == "" ? "" : section("training", "Training", intro, content);
}

}  // namespace cohort::report

// The interval of a forecast from the errors of those before it.
//
//   e_i = log(measured / predicted)                 of n runs that count as alike
//   [low, high] = exp(mean(e) -+ t(0.95, n - 1) x s x sqrt(1 + 1/n))      s: standard deviation of e, at least kNoise
//
// the interval in which the next of n + 1 draws of a normal distribution lies in 90 of 100 cases (Student's t; e.g. Hahn and Meeker,
// Statistical Intervals, 1991, section 4.7). Times vary by factors, so the errors are taken as logarithms. The same plan measured twice
// differs by kNoise, so a few runs that agree by chance do not promise more.
//
// One run during which something else took the machine must not widen the interval for months, so far errors are left out before: of n >=
// kLeastToJudge runs a tenth at most (and one), for that many of 100 may lie outside, and those alone that are further from the median than
// kFar robust deviations (1.4826 x the median distance from the median, at least kNoise; e.g. Rousseeuw and Croux, 1993). Errors that are
// all large, or large in a tenth and more, stay and widen it.
//
// Which runs are alike, from near to far, each with at least kLeastErrors:
//   1. the same model in the same class of layouts and the same precision: the newest kMostErrors runs;
//   2. that class and precision, of any model: the newest run of each model, or one that is trained every day would speak for all;
//   3. everything: the newest run of each model in each class.
//
// The interval always holds the forecast itself (low <= 1 <= high), which is not moved: docs/algorithms/step_forecast.md says why.
// Cost: O(errors), once a plan.
#include "cohort/plan/profile/error_intervals.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kNoise = 0.04;
constexpr size_t kMostErrors = 30;
constexpr size_t kLeastToJudge = 5;
constexpr double kWidest = 10;  // Times, each way: beyond, an interval says nothing of the forecast, and much of who else used the machine.
constexpr double kFar = 6, kDeviationOfMedianDistance = 1.4826;  // Of a normal distribution.

/// Student's t, 95 % below, by degrees of freedom from 1.
double student_quantile(size_t degrees) {
  constexpr std::array<double, 30> kTable = {6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
                                             1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
                                             1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697};
  return kTable.at(std::clamp<size_t>(degrees, 1, kTable.size()) - 1);
}

/// `logs` without the few that lie far from all others.
std::vector<double> without_outliers(std::vector<double> logs) {
  if (logs.size() < kLeastToJudge) return logs;
  const double middle = median(logs);
  const auto distance = [&](double value) { return std::abs(value - middle); };
  std::vector<double> distances;
  for (const double value : logs) distances.push_back(distance(value));
  const double far = kFar * std::max(kNoise, kDeviationOfMedianDistance * median(distances));
  std::sort(logs.begin(), logs.end(), [&](double a, double b) { return distance(a) < distance(b); });
  const size_t least = logs.size() - std::max<size_t>(1, logs.size() / 10);
  while (logs.size() > least && distance(logs.back()) > far) logs.pop_back();
  return logs;
}

/// `all`: at least two.
ErrorInterval interval_of(const std::vector<double>& all, std::string from) {
  const std::vector<double> logs = without_outliers(all);
  const auto n = static_cast<double>(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / n;
  double squares = 0;
  for (const double value : logs) squares += (value - mean) * (value - mean);
  const double deviation = std::max(kNoise, std::sqrt(squares / (n - 1)));
  const double half = std::min(std::log(kWidest), student_quantile(logs.size() - 1) * deviation * std::sqrt(1 + 1 / n));
  return {std::min(1.0, std::exp(mean - half)), std::max(1.0, std::exp(mean + half)), std::move(from)};
}

std::string key_of(const std::string& layout_class, const std::string& precision) { return concat(layout_class, " in ", precision); }

/// "dp" for "dp in fp32", as people say it.
std::string spoken(const std::string& key) { return key.ends_with(" in fp32") ? key.substr(0, key.size() - 8) : key; }

}  // namespace

std::string layout_class(const Layout& layout) {
  std::vector<std::string> parts;
  const std::vector<int> degrees = layout.data_degrees();
  if (*std::max_element(degrees.begin(), degrees.end()) > 1) parts.emplace_back("dp");
  if (layout.zero > 0) parts.push_back(concat("zero=", layout.zero));
  if (layout.pp > 1) parts.push_back(concat("pp ", layout.schedule.ends_with(".json") ? std::string("table") : layout.schedule));
  if (layout.tp > 1) parts.emplace_back("tp");
  if (layout.compress != "none") parts.push_back("compress=" + layout.compress);
  if (layout.recompute != "none") parts.emplace_back("recompute");
  return parts.empty() ? "single" : join(parts, " ");
}

ForecastIntervals::ForecastIntervals(const std::vector<ForecastError>& errors, const std::string& model, int64_t parameters) {
  std::map<std::string, std::vector<double>> mine;                                  // By key, the newest first.
  std::map<std::string, std::map<std::pair<std::string, int64_t>, double>> newest;  // By key and model.
  for (auto error = errors.rbegin(); error != errors.rend(); ++error) {
    // A file may say anything; e^10 is an error beyond any use.
    const double log = std::clamp(std::log(error->measured_step_seconds / error->predicted_step_seconds), -10.0, 10.0);
    const std::string key = key_of(error->layout_class, error->precision);
    newest[key].emplace(std::pair(error->model, error->parameters), log);
    if (error->model == model && error->parameters == parameters && mine[key].size() < kMostErrors) mine[key].push_back(log);
  }
  std::vector<double> all;
  for (const auto& [key, logs] : mine)
    if (logs.size() >= kLeastErrors) of_model_[key] = interval_of(logs, concat(logs.size(), " runs of ", model, " as ", spoken(key)));
  for (const auto& [key, models] : newest) {
    std::vector<double> logs;
    for (const auto& [name, log] : models) logs.push_back(log);
    if (logs.size() >= kLeastErrors) of_class_[key] = interval_of(logs, concat(logs.size(), " runs of as many models as ", spoken(key)));
    all.insert(all.end(), logs.begin(), logs.end());
  }
  if (all.size() >= kLeastErrors) of_all_ = interval_of(all, concat(all.size(), " runs of all models and layouts"));
}

const ErrorInterval* ForecastIntervals::of(const Layout& layout, const std::string& precision) const {
  const ErrorInterval* const rest = of_all_.from.empty() ? nullptr : &of_all_;
  if (of_model_.empty() && of_class_.empty()) return rest;  // A search asks for each layout.
  const std::string key = key_of(layout_class(layout), layout.precision.empty() ? precision : layout.precision);
  if (const auto found = of_model_.find(key); found != of_model_.end()) return &found->second;
  if (const auto found = of_class_.find(key); found != of_class_.end()) return &found->second;
  return rest;
}

}  // namespace cohort

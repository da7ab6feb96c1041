#include "cohort/study/fits.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cohort/base/error.h"
#include "cohort/base/text.h"
#include "cohort/study/fit_search.h"

namespace cohort::study {
namespace {

constexpr const char* kLawNames[] = {"hyperbola", "knee", "log-linear"};

double smallest_batch(std::span<const StepsPoint> points) {
  double smallest = points.empty() ? 0 : points.front().batch_size;
  for (const StepsPoint& point : points) smallest = std::min(smallest, point.batch_size);
  return smallest;
}

Fit fit_without_residuals(Law law, std::span<const StepsPoint> points, double reference_batch) {
  switch (law) {
    case Law::kHyperbola:
      return fit_hyperbola(points);
    case Law::kKnee:
      return fit_knee(points);
    case Law::kLogLinear:
      break;
  }
  return fit_log_linear(points, reference_batch > 0 ? reference_batch : smallest_batch(points));
}

size_t column_of(const std::vector<std::string>& header, const std::string& name, const std::string& path) {
  for (size_t i = 0; i < header.size(); ++i)
    if (trim(header[i]) == name) return i;
  fail(ErrorCode::kBadInput, path, ":1: no column '", name, "'; the first line names the columns, such as batch_size,steps");
}

double positive_number(const std::string& text, const char* what, const std::string& where) {
  const std::optional<double> value = parse_number(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    fail(ErrorCode::kBadInput, where, what, " '", printable(text), "' is not a positive number");
  return *value;
}

}  // namespace

const char* name_of(Law law) { return kLawNames[static_cast<int>(law)]; }

Law parse_law(const std::string& name) {
  for (const Law law : {Law::kHyperbola, Law::kKnee, Law::kLogLinear})
    if (name == name_of(law)) return law;
  fail(ErrorCode::kBadInput, "law '", name, "' is none of hyperbola, knee, log-linear");
}

double Fit::steps_at(double batch_size) const {
  if (law == Law::kLogLinear) return parameters[0].second + parameters[1].second / batch_size;
  const double min_steps = parameters[0].second, critical = parameters[1].second;
  if (std::isinf(critical)) return min_examples / batch_size;
  if (law == Law::kHyperbola) return min_steps * (1 + critical / batch_size);
  const double exponent = parameters[2].second;
  // In logarithms: (Bc / B)^e overflows for sharp knees.
  const double power = exponent * std::log(critical / batch_size);
  return min_steps * std::exp((power > 0 ? power + std::log1p(std::exp(-power)) : std::log1p(std::exp(power))) / exponent);
}

Fit fit_law(Law law, std::span<const StepsPoint> points, double reference_batch) {
  Fit fit = fit_without_residuals(law, points, reference_batch);
  for (const StepsPoint& point : points) fit.residuals_log.push_back(std::log(point.steps / fit.steps_at(point.batch_size)));
  return fit;
}

std::vector<StepsPoint> points_of(const std::vector<StepsToResult>& steps) {
  std::vector<StepsPoint> points;
  // A goal that the untrained model meets (step 0) says nothing of batch sizes, and has no logarithm.
  for (const StepsToResult& result : steps)
    if (result.steps && *result.steps > 0)
      points.push_back({.batch_size = static_cast<double>(result.batch_size), .steps = static_cast<double>(*result.steps)});
  return points;
}

std::vector<StepsPoint> read_steps_table(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) fail(ErrorCode::kBadInput, "cannot read ", path, ": no such file");
  std::string line;
  std::vector<std::string> header;
  std::vector<StepsPoint> points;
  size_t batch_column = 0, steps_column = 0;
  for (int number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // A byte order mark, as spreadsheets write it.
    if (trim(line).empty()) continue;
    const std::vector<std::string> cells = split(line, ',');
    if (header.empty()) {
      header = cells;
      batch_column = column_of(header, "batch_size", path);
      steps_column = column_of(header, "steps", path);
      continue;
    }
    const std::string where = concat(path, ":", number, ": ");
    if (cells.size() != header.size())
      fail(ErrorCode::kBadInput, where, cells.size(), " columns, but the first line names ", header.size());
    const double batch_size = positive_number(trim(cells[batch_column]), "batch_size", where);
    if (trim(cells[steps_column]).empty()) continue;
    points.push_back({.batch_size = batch_size, .steps = positive_number(trim(cells[steps_column]), "steps", where)});
  }
  if (header.empty()) fail(ErrorCode::kBadInput, path, " is empty; it needs a line batch_size,steps and one line for each batch size");
  std::sort(points.begin(), points.end(), [](const StepsPoint& a, const StepsPoint& b) { return a.batch_size < b.batch_size; });
  return points;
}

}  // namespace cohort::study

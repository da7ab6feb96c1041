#include "cohort/train/records/evaluation_text.h"

#include <cmath>

#include "cohort/base/fail.h"

namespace cohort {

std::string metrics_text(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += concat(", ", name, " ", value);
  return text;
}

std::string error_text(const DataShape& shape, const Evaluation& evaluation) {
  if (!evaluation.has_error()) return "";
  if (shape.regression) return concat(", error ", evaluation.error, " of a deviation");
  return concat(", error ", 100 * evaluation.error, " %",
                evaluation.has_precision() ? concat(", average precision ", evaluation.precision) : "");
}

std::string quality_text(const DataShape& shape, double error, double precision) {
  if (shape.regression) return concat("error ", error, " of a deviation");
  if (!std::isnan(precision)) return concat("average precision ", std::round(1e4 * precision) / 1e4);
  if (shape.labels) return concat("error ", std::round(1e4 * error) / 100, " % of the labels");
  return concat("accuracy ", std::round(1e4 * (1 - error)) / 100, " %");
}

}  // namespace cohort

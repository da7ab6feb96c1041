#pragma once
// What an evaluation found, as parts of the sentences that a run tells.

#include <map>
#include <string>

#include "cohort/data/source/source.h"
#include "cohort/record/evaluation.h"

namespace cohort {

/// ", f1 0.9, top5-error 0.01".
std::string metrics_text(const std::map<std::string, double>& metrics);
/// ", error 12 %", of labels with their average precision; "" where no error is known.
std::string error_text(const DataShape& shape, const Evaluation& evaluation);
/// "accuracy 90 %", "error 0.3 of a deviation", "average precision 0.8"; of labels without a precision "error 3 % of the labels".
std::string quality_text(const DataShape& shape, double error, double precision);

}  // namespace cohort

#pragma once
// measurements.csv of one trial: step,train/cross_entropy_error,train/classification_error,... and one line per evaluation.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// "val/classification_error".
const char* csv_column(Metric metric);

/// `metrics` are the columns. Numbers are the shortest that read back to the same bits; empty where not measured.
std::string to_csv(const std::vector<Measurement>& measurements, const std::vector<Metric>& metrics);

/// Columns may be in any order; unknown ones are ignored. Lines may be in any order; the result is sorted by step. Empty fields and "nan"
/// are not measured; "inf" and "Infinity" are infinite. Error(kBadInput) "PATH:LINE: ..." for a missing step column, a duplicate column or
/// step, a line with a wrong number of fields, and a field that is not a number.
std::vector<Measurement> parse_csv(std::string_view text, const std::string& path);

/// Streams the lines instead of storing them. Returns false at the first line whose step does not increase: start again with parse_csv(),
/// which sorts and reports duplicate steps.
bool read_rising_csv(std::string_view text, const std::string& path, const std::function<void(const Measurement&)>& take);

}  // namespace cohort::study

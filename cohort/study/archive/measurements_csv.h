#pragma once
// measurements.csv of one trial: step,train/cross_entropy_error,train/classification_error,... and a line an evaluation.

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

/// Columns in any order; unknown ones are passed over. Lines in any order; the result is sorted by step. Empty fields and "nan" are not
/// measured; "inf" and "Infinity" are infinite. Error(kBadInput) "PATH:LINE: ..." for a missing step column, a column or a step that comes
/// twice, a line with another number of fields, and what is not a number.
std::vector<Measurement> parse_csv(std::string_view text, const std::string& path);

/// The same one line after the other, without memory for them. False at the first line whose step is not above the one before: begin
/// again with parse_csv, which sorts, and knows steps that come twice.
bool read_rising_csv(std::string_view text, const std::string& path, const std::function<void(const Measurement&)>& take);

}  // namespace cohort::study

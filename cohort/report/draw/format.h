#pragma once
// Numbers as text on a page. Unknown values (NaN) are shown as an en dash.

#include <cstdint>
#include <optional>
#include <string>

namespace cohort::report {

/// `digits` significant digits, thousands with commas, exponents only below 1e-4 and from 1e7 up: 0.2814, 5,213, 3.1e-5.
std::string significant(double value, int digits);
/// Whole numbers in full, with commas; others with `digits` significant digits.
std::string plain_number(double value, int digits = 3);
/// 0.9013 -> "90.1 %".
std::string percent_text(double fraction, int decimals = 1);
/// 0.0123 -> "12.3 ms"; always milliseconds, so that the rows of a table are comparable.
std::string milliseconds_text(double seconds);
/// human_seconds() for any double.
std::string seconds_text(double seconds);
/// human_bytes() and with_commas() of optional values.
std::string bytes_text(std::optional<int64_t> bytes);
std::string count_text(std::optional<int64_t> count);
/// "1 worker", "2 workers".
std::string plural(int64_t count, const std::string& noun);
/// 3 -> "3", 12.34567 with 2 decimals -> "12.35", without trailing zeros: what SVG coordinates need.
std::string coordinate(double value, int decimals = 1);

}  // namespace cohort::report

#pragma once
// Small text tools of parsers: whole-string numbers, splitting, nearest name.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// The whole of `text` as a number; empty when it is not one or does not fit.
COHORT_PROGRAM_API std::optional<int64_t> parse_integer(std::string_view text);
COHORT_PROGRAM_API std::optional<double> parse_number(std::string_view text);
/// Pieces between `separator`; "a,,b" has an empty middle piece, "" has no piece.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}
inline std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}
COHORT_PROGRAM_API std::string trim(std::string_view text);
/// All before the first newline: what to show of an exception of LibTorch, which appends a C++ stack trace.
std::string first_line(std::string_view text);
/// The name of `names` nearest to `text` by edit distance where it is near enough to be a slip of the finger, else "".
std::string nearest_name(std::string_view text, const std::vector<std::string>& names);
/// " (did you mean 'x'?)" or "".
COHORT_PROGRAM_API std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);
/// Safe to show on a terminal: control characters (but newline and tab) and bytes that are no UTF-8 become '?'.
COHORT_PROGRAM_API std::string printable(std::string_view text);
/// 1536 -> "1.5 KiB".
COHORT_PROGRAM_API std::string human_bytes(int64_t bytes);
/// 192.4 -> "3 min 12 s", 0.0123 -> "12.3 ms".
COHORT_PROGRAM_API std::string human_seconds(double seconds);
/// 1234567 -> "1,234,567".
std::string with_commas(int64_t number);

}  // namespace cohort

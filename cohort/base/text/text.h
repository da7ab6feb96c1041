#pragma once
// Small text tools of parsers: whole-string numbers, splitting, nearest name.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// The whole of `text` as a number; empty when it is not one or does not fit.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);
/// Pieces between `separator`; "a,,b" has an empty middle piece, "" has no piece.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string trim(std::string_view text);
/// All before the first newline: what to show of an exception of LibTorch, which appends a C++ stack trace.
std::string first_line(std::string_view text);
/// The name of `names` nearest to `text` by edit distance where it is near enough to be a slip of the finger, else "".
std::string nearest_name(std::string_view text, const std::vector<std::string>& names);
/// " (did you mean 'x'?)" or "".
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);
/// Safe to show on a terminal: control characters (but newline and tab) and bytes that are no UTF-8 become '?'.
std::string printable(std::string_view text);
/// 1536 -> "1.5 KiB".
std::string human_bytes(int64_t bytes);
/// 192.4 -> "3 min 12 s", 0.0123 -> "12.3 ms".
std::string human_seconds(double seconds);
/// 1234567 -> "1,234,567".
std::string with_commas(int64_t number);

}  // namespace cohort

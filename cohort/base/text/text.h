#pragma once
// Text utilities: parsing numbers, splitting, nearest names, quoting, truncation, formatting, HOST:PORT, the time of day.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/fail.h"

namespace cohort {

/// The whole of `text` as a number; empty when it is not one or does not fit.
COHORT_PROGRAM_API std::optional<int64_t> parse_integer(std::string_view text);
COHORT_PROGRAM_API std::optional<double> parse_number(std::string_view text);
/// The same; empty also where the number is not from `least` to `most`.
std::optional<int64_t> parse_integer(std::string_view text, int64_t least, int64_t most);
std::optional<double> parse_number(std::string_view text, double least, double most);
/// "a:b:c" at ':' is {"a", "b:c"}; nothing second where there is no separator.
std::pair<std::string, std::optional<std::string>> split_once(std::string_view text, char separator);
/// The texts between separators; "a,,b" has an empty one in the middle, "" has none.
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
/// The text before the first newline; exceptions of LibTorch append a C++ stack trace.
std::string first_line(std::string_view text);
/// The nearest of `names` by edit distance where it is near enough for a typo, else "".
std::string nearest_name(std::string_view text, const std::vector<std::string>& names);
/// " (did you mean 'x'?)" or "".
COHORT_PROGRAM_API std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);
/// `text` for a terminal: control characters (but newline and tab) and invalid UTF-8 become '?'.
COHORT_PROGRAM_API std::string printable(std::string_view text);
/// 1536 -> "1.5 KiB".
COHORT_PROGRAM_API std::string human_bytes(int64_t bytes);
/// 192.4 -> "3 min 12 s", 0.0123 -> "12.3 ms".
COHORT_PROGRAM_API std::string human_seconds(double seconds);
/// 16 hexadecimal digits.
std::string hexadecimal_digits(uint64_t number);
/// 1234567 -> "1,234,567".
std::string with_commas(int64_t number);

/// Number of bytes of `text`, at most `most`, to keep before "...": up to the last word end in the second half, else as many as fit without
/// splitting a UTF-8 character.
inline size_t length_of_whole_words(std::string_view text, size_t most) {
  constexpr std::string_view kBetweenWords = " \t\n,;:()[]./";
  if (text.size() <= most) return text.size();
  size_t end = std::min(most, text.find_last_of(kBetweenWords, most));
  if (end >= most / 2) end = text.find_last_not_of(kBetweenWords, end) + 1;
  if (end < most / 2 || end > most) end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

/// 0.042 -> "4.2 %", 0.33 -> "33 %".
inline std::string percent(double share) {
  const double value = 100 * share;
  return concat(std::abs(value) < 9.95 ? std::round(value * 10) / 10 : std::round(value), " %");
}

/// `text` as one word for a POSIX shell: in single quotes where it needs them.
COHORT_PROGRAM_API std::string shell_quoted(const std::string& text);

struct HostAndPort {
  std::string host;
  int port = 0;
};

/// A name, an IPv4 address, or an IPv6 address in brackets; the port from 0 to 65535. Error(kBadInput) beginning with `option`.
HostAndPort parse_host_and_port(const std::string& text, const std::string& option);

/// The current time as 2026-01-31T12:00:00Z.
std::string utc_now();

}  // namespace cohort

#include "cohort/report/draw/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/base/text/text.h"

namespace cohort::report {
namespace {

constexpr char kDash[] = "\u2013";

std::string fixed(double value, int decimals) {
  char out[400];  // The longest double has 309 digits before its point.
  std::snprintf(out, sizeof out, "%.*f", decimals, value);
  return out;
}

/// "1.2e-05" -> "1.2e-5".
std::string exponential(double value, int decimals) {
  char out[48];
  std::snprintf(out, sizeof out, "%.*e", decimals, value);
  std::string text = out;
  size_t at = text.find('e') + 1;
  if (text[at] == '+') text.erase(at, 1);
  else ++at;
  while (at + 1 < text.size() && text[at] == '0') text.erase(at, 1);
  return text;
}

}  // namespace

std::string significant(double value, int digits) {
  if (std::isnan(value)) return kDash;
  if (std::isinf(value)) return value > 0 ? "\u221e" : "\u2212\u221e";
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size < 1e-4 || size >= 1e7) return exponential(value, digits - 1);
  if (size >= 1000) return with_commas(std::llround(value));
  return fixed(value, std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(size)))));
}

std::string plain_number(double value, int digits) {
  const bool is_whole = std::abs(value) < 1e12 && std::round(value) == value;
  return is_whole ? with_commas(std::llround(value)) : significant(value, digits);
}

std::string percent_text(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return kDash;
  return (std::abs(fraction) < 1e4 ? fixed(100 * fraction, decimals) : significant(100 * fraction, 3)) + " %";
}

std::string milliseconds_text(double seconds) { return std::isfinite(seconds) ? significant(1e3 * seconds, 3) + " ms" : kDash; }

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return kDash;
  if (seconds == 0) return "0 s";
  if (seconds < 0 || seconds > 1e8) return significant(seconds, 3) + " s";
  return human_seconds(seconds < 60 ? seconds : std::round(seconds));
}

std::string bytes_text(std::optional<int64_t> bytes) { return bytes ? human_bytes(*bytes) : kDash; }
std::string count_text(std::optional<int64_t> count) { return count ? with_commas(*count) : kDash; }

std::string plural(int64_t count, const std::string& noun) { return with_commas(count) + " " + noun + (count == 1 ? "" : "s"); }

std::string coordinate(double value, int decimals) {
  std::string text = fixed(value, decimals);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace cohort::report

#include "cohort/base/text/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t least, int64_t most) {
  const auto value = parse_integer(text);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

std::optional<double> parse_number(std::string_view text, double least, double most) {
  const auto value = parse_number(text);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

std::pair<std::string, std::optional<std::string>> split_once(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) return {std::string(text), std::nullopt};
  return {std::string(text.substr(0, at)), std::string(text.substr(at + 1))};
}

std::string trim(std::string_view text) {
  const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::string nearest_name(std::string_view text, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::clamp<size_t>(text.size() / 2, 1, 3) + 1;
  for (const std::string& name : names) {
    // Levenshtein distance, one row at a time.
    std::vector<size_t> row(name.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= text.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t change = diagonal + (text[i - 1] != name[j - 1]);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string>& names) {
  const std::string name = nearest_name(text, names);
  return name.empty() ? "" : " (did you mean '" + name + "'?)";
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    // Length of the UTF-8 sequence by its first byte; 0xC0 and 0xC1 would be overlong, from 0xF5 on beyond Unicode.
    const size_t length = byte < 0x80                   ? 1
                          : byte >= 0xC2 && byte < 0xE0 ? 2
                          : byte >= 0xE0 && byte < 0xF0 ? 3
                          : byte >= 0xF0 && byte < 0xF5 ? 4
                                                        : 0;
    bool good = length > 0 && at + length <= text.size() && (byte >= 0x20 || byte == '\n' || byte == '\t') && byte != 0x7f;
    for (size_t i = 1; good && i < length; ++i) good = (static_cast<unsigned char>(text[at + i]) & 0xC0) == 0x80;
    const auto second = static_cast<unsigned char>(length > 1 && good ? text[at + 1] : 0);
    // Overlong forms, surrogates, beyond U+10FFFF, and the C1 control characters.
    if ((byte == 0xE0 && second < 0xA0) || (byte == 0xED && second >= 0xA0) || (byte == 0xF0 && second < 0x90) ||
        (byte == 0xF4 && second >= 0x90) || (byte == 0xC2 && second < 0xA0))
      good = false;
    if (good) out += text.substr(at, length);
    else out += '?';
    at += good ? length : 1;
  }
  return out;
}

std::string human_bytes(int64_t bytes) {
  const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char out[32];
  std::snprintf(out, sizeof out, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return out;
}

std::string human_seconds(double seconds) {
  char out[48];
  if (seconds < 1e-3) std::snprintf(out, sizeof out, "%.1f us", seconds * 1e6);
  else if (seconds < 1) std::snprintf(out, sizeof out, "%.1f ms", seconds * 1e3);
  else if (seconds < 60) std::snprintf(out, sizeof out, "%.1f s", seconds);
  else if (seconds < 3600) std::snprintf(out, sizeof out, "%d min %d s", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
  else std::snprintf(out, sizeof out, "%d h %d min", static_cast<int>(seconds) / 3600, static_cast<int>(seconds) % 3600 / 60);
  return out;
}

std::string hexadecimal_digits(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  const size_t sign = number < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string shell_quoted(const std::string& text) {
  constexpr char kPlain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

HostAndPort parse_host_and_port(const std::string& text, const std::string& option) {
  const size_t colon = text.rfind(':');
  HostAndPort out{.host = text.substr(0, colon)};
  const bool in_brackets = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (in_brackets) out.host = out.host.substr(1, out.host.size() - 2);
  const int64_t port = colon == std::string::npos ? -1 : parse_integer(text.substr(colon + 1)).value_or(-1);
  const bool is_name = out.host.find_first_of(in_brackets ? " /@[]" : " /@:[]") == std::string::npos;
  if (port < 0 || port > 65535 || out.host.empty() || !is_name)
    fail(ErrorCode::kBadInput, option, " ", printable(text), ": expected HOST:PORT, as 10.0.0.1:29400 or [::1]:29400");
  out.port = static_cast<int>(port);
  return out;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char out[32];
  std::strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return out;
}

}  // namespace cohort

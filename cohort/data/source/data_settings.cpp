#include "cohort/data/source/data_settings.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// Whether `,key=` begins at the comma `at`.
bool begins_setting(const std::string& text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && ((text[end] >= 'a' && text[end] <= 'z') || text[end] == '_' || text[end] == '-')) ++end;
  return end > at + 1 && end < text.size() && text[end] == '=';
}

}  // namespace

DataSettings::DataSettings(const std::string& kind, const std::string& text, const std::vector<std::string>& known) {
  size_t end = text.find(',');
  while (end != std::string::npos && !begins_setting(text, end)) end = text.find(',', end + 1);
  path_ = text.substr(0, end);
  what_ = kind + ":" + path_;
  if (path_.empty())
    fail(ErrorCode::kBadInput, "data '", kind, ":", text, "': the path is missing; expected ", kind, ":PATH[,key=value...]");
  if (end == std::string::npos) return;
  for (const std::string& item : split(std::string_view(text).substr(end + 1), ',')) {
    const auto [key, value] = split_once(item, '=');
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse("unknown setting '", printable(key), "'", did_you_mean(key, known), ": expected ", join(known, ", "));
    if (value.value_or("").empty()) refuse(key, " has no value");
    if (!values_.emplace(key, *value).second) refuse(key, " is given twice");
  }
}

std::string DataSettings::text(const std::string& key, const std::string& fallback) const {
  const auto found = values_.find(key);
  return found == values_.end() ? fallback : found->second;
}

std::string DataSettings::one_of(const std::string& key, const std::vector<std::string>& allowed, const std::string& fallback) const {
  const std::string value = text(key, fallback);
  if (value != fallback && std::find(allowed.begin(), allowed.end(), value) == allowed.end())
    refuse(key, "=", printable(value), did_you_mean(value, allowed), ": expected ", join(allowed, " or "));
  return value;
}

int64_t DataSettings::integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const {
  if (!has(key)) return fallback;
  const auto value = parse_integer(text(key), minimum, maximum);
  if (!value) refuse(key, "=", printable(text(key)), ": expected a whole number from ", minimum, " to ", maximum);
  return *value;
}

double DataSettings::number(const std::string& key, double fallback, double minimum, double maximum) const {
  if (!has(key)) return fallback;
  const auto value = parse_number(text(key), minimum, maximum);
  if (!value) refuse(key, "=", printable(text(key)), ": expected a number from ", minimum, " to ", maximum);
  return *value;
}

std::vector<std::string> DataSettings::names(const std::string& key) const {
  std::vector<std::string> names = split(text(key), '+');
  for (const std::string& name : names)
    if (name.empty()) refuse(key, "=", printable(text(key)), ": a name is empty; expected NAME+NAME");
  return names;
}

uint64_t seed_of_split(const DataSettings& settings, const DataOptions& options, bool has_own_validation, const std::string& where) {
  if (has_own_validation && (settings.has("seed") || options.validation_samples > 0))
    settings.refuse(
        where, " holds the samples for validation, so ",
        settings.has("seed") ? "seed=" + settings.text("seed") : concat(name_settings("--val-samples "), options.validation_samples),
        " would do nothing; leave it out");
  const int64_t seed = settings.integer("seed", 0, 0, INT64_MAX);
  return settings.has("seed") ? static_cast<uint64_t>(seed) : options.seed;
}

}  // namespace cohort

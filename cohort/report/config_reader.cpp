#include "cohort/report/config_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

struct Found {
  ConfigValue value;
  toml::source_position at;
};

/// The shortest text that reads back as the same number; toml++ writes 0.05 as 0.050000000000000003.
std::string shortest(double value) {
  char out[40];
  const auto [end, error] = std::to_chars(out, out + sizeof out, value);
  std::string text(out, end);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void collect(const toml::table& table, const std::string& prefix, std::vector<Found>& found) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      collect(*inner, name + ".", found);
      continue;
    }
    std::ostringstream text;
    if (const auto* string = node.as_string()) text << string->get();
    else if (const auto* number = node.as_floating_point()) text << shortest(number->get());
    else node.visit([&](const auto& value) { text << value; });
    found.push_back({{name, text.str()}, node.source().begin});
  }
}

}  // namespace

std::vector<ConfigValue> read_config_values(const std::string& path) {
  const std::string content = read_small_file(path, kMaxConfigBytes);
  std::vector<Found> found;
  try {
    collect(toml::parse(content, path), "", found);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kBadInput, path, ":", error.source().begin.line, ": ", error.description());
  }
  // toml++ sorts its tables by name; the order of the file is the one that its writer chose.
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return std::tie(a.at.line, a.at.column) < std::tie(b.at.line, b.at.column); });
  std::vector<ConfigValue> values;
  for (Found& one : found) values.push_back(std::move(one.value));
  return values;
}

}  // namespace cohort::report

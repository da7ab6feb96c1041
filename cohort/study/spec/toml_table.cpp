#include "cohort/study/spec/toml_table.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/text/text.h"
#include "cohort/study/spec/spec_text.h"

namespace cohort::study {
namespace {

std::string describe(const toml::node& node) {
  if (const auto* text = node.as_string()) return quote_text(text->get());
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a table";
  return "a date or time";
}

/// Whole numbers count as numbers.
bool to_number(const toml::node& node, double& value) {
  if (const auto* whole = node.as_integer()) value = static_cast<double>(whole->get());
  else if (const auto* number = node.as_floating_point()) value = number->get();
  else return false;
  return std::isfinite(value);
}

bool is_bare_key(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

}  // namespace

TomlTable::TomlTable(std::string file, const toml::table& root, const std::vector<std::string>& known)
    : file_(std::move(file)), table_(&root) {
  refuse_unknown(known);
}

std::string TomlTable::printable_key(const std::string& key) { return is_bare_key(key) && key.size() <= 100 ? key : quote_text(key); }

void TomlTable::refuse_unknown(const std::vector<std::string>& known) const {
  if (!table_) return;
  for (const auto& [key, node] : *table_) {
    const std::string name(key.str());
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::kBadInput, place(&node), title(), "unknown key ", printable_key(name), did_you_mean(name, known),
           "; known: ", join(known, " "));
  }
}

std::string TomlTable::place(const toml::node* node) const {
  int64_t line = node ? static_cast<int64_t>(node->source().begin.line) : 0;
  if (line == 0) line = line_;
  return line > 0 ? concat(file_, ":", line, ": ") : file_ + ": ";
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> names;
  if (table_)
    for (const auto& [key, node] : *table_) names.emplace_back(key.str());
  return names;
}

TomlTable TomlTable::table(const std::string& key, const std::vector<std::string>& known, const std::string& or_else) const {
  const std::string name = (name_.empty() ? "" : name_ + ".") + printable_key(key);
  if (!has(key)) return {file_, name, nullptr, line_};
  const toml::node& node = *table_->get(key);
  const toml::table* table = node.as_table();
  if (!table) fail_type(key, node, (or_else.empty() ? "" : or_else + " or ") + "a table, [" + name + "]");
  const int64_t line = static_cast<int64_t>(table->source().begin.line);
  TomlTable found(file_, name, table, line > 0 ? line : line_);
  if (!known.empty()) found.refuse_unknown(known);
  return found;
}

void TomlTable::fail_type(const std::string& key, const toml::node& node, const std::string& expected) const {
  fail(ErrorCode::kBadInput, place(&node), title(), printable_key(key), ": expected ", expected, ", found ", describe(node));
}

std::string TomlTable::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  const toml::node& node = *table_->get(key);
  if (!node.is_string()) fail_type(key, node, "a text in quotes");
  return node.as_string()->get();
}

int64_t TomlTable::whole(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const {
  if (!has(key)) return fallback;
  const toml::node& node = *table_->get(key);
  const auto* value = node.as_integer();
  if (!value || value->get() < minimum || value->get() > maximum)
    fail_type(key, node, concat("a whole number from ", minimum, " to ", maximum));
  return value->get();
}

double TomlTable::number(const std::string& key, double fallback, double minimum, double maximum) const {
  if (!has(key)) return fallback;
  const toml::node& node = *table_->get(key);
  double value = 0;
  if (!to_number(node, value) || value < minimum || value > maximum)
    fail_type(key, node, "a number from " + number_text(minimum) + " to " + number_text(maximum));
  return value;
}

bool TomlTable::flag(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const toml::node& node = *table_->get(key);
  if (!node.is_boolean()) fail_type(key, node, "true or false");
  return node.as_boolean()->get();
}

const toml::array& TomlTable::list(const std::string& key, const std::string& expected) const {
  const toml::node& node = *table_->get(key);
  if (!node.is_array()) fail_type(key, node, expected);
  return *node.as_array();
}

std::vector<std::string> TomlTable::texts(const std::string& key) const {
  std::vector<std::string> values;
  if (!has(key)) return values;
  const std::string expected = "a list of texts in quotes";
  for (const toml::node& node : list(key, expected)) {
    if (!node.is_string()) fail_type(key, node, expected);
    values.push_back(node.as_string()->get());
  }
  return values;
}

std::vector<int64_t> TomlTable::wholes(const std::string& key, int64_t minimum, int64_t maximum) const {
  std::vector<int64_t> values;
  if (!has(key)) return values;
  const std::string expected = concat("a list of whole numbers from ", minimum, " to ", maximum);
  for (const toml::node& node : list(key, expected)) {
    const auto* value = node.as_integer();
    if (!value || value->get() < minimum || value->get() > maximum) fail_type(key, node, expected);
    values.push_back(value->get());
  }
  return values;
}

std::vector<double> TomlTable::numbers(const std::string& key) const {
  std::vector<double> values;
  if (!has(key)) return values;
  const std::string expected = "a list of finite numbers";
  for (const toml::node& node : list(key, expected)) {
    double value = 0;
    if (!to_number(node, value)) fail_type(key, node, expected);
    values.push_back(value);
  }
  return values;
}

}  // namespace cohort::study

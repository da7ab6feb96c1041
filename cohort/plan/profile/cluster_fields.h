#pragma once
// One object of a cluster's file, from JSON or from TOML, whose every error is a line "FILE: OBJECT: what is wrong", of TOML with the line
// of the file. For cluster_file.cpp alone.

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort::cluster_file {

/// A name of `names`; long texts are no slips of the finger, and an edit distance to them would take long.
inline std::string nearest(const std::string& text, const std::vector<std::string>& names) {
  return text.size() > 64 ? "" : did_you_mean(text, names);
}

/// Where a value stands: FILE, and of TOML its line.
struct Place {
  std::string file;
  bool is_toml = false;

  std::string at(const toml::node* node) const {
    const int64_t line = node ? static_cast<int64_t>(node->source().begin.line) : 0;
    return line > 0 ? concat(file, ":", line) : file;
  }
  std::string table(const std::string& name) const { return is_toml ? "[" + name + "]" : name; }
};

/// One object of the file. Names of keys are the source's; what the file says is quoted, so that a refusal stays one line.
class Fields {
 public:
  static constexpr size_t kMostTextBytes = 4096;
  static constexpr double kMostRate = 1e30;

  /// `title`: of the table, "" for the whole file. `node`: the same in TOML, where it is from TOML.
  Fields(const Json& object, const toml::node* node, const Place& place, std::string title, const std::vector<std::string>& keys)
      : object_(object), node_(node), table_(node ? node->as_table() : nullptr), place_(place), title_(std::move(title)) {
    if (!object.is_object()) refuse("", "expected ", kind_of_object(), ", found ", shown(object));
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse(key, "unknown key ", quote_text(key), nearest(key, keys), "; keys: ", join(keys, " "));
  }

  /// With the line of the key, or of the table where it has no such key; what the whole file lacks has no line.
  template <typename... Parts>
  [[noreturn]] void refuse(const std::string& key, const Parts&... parts) const {
    const toml::node *member = node_of(key), *table = title_.empty() ? nullptr : node_;
    fail(ErrorCode::kBadInput, place_.at(member ? member : table), ": ", title_, title_.empty() ? "" : ": ", parts...);
  }

  bool has(const char* key) const { return object_.contains(key); }
  bool is_empty() const { return object_.empty(); }
  const Json& object() const { return object_; }
  const std::string& title() const { return title_; }
  const Place& place() const { return place_; }

  const Json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse("", "'", key, "' is missing");
    return *found;
  }

  std::string text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_string()) refuse(key, "'", key, "' is ", shown(value), "; expected text");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kMostTextBytes) refuse(key, "'", key, "' has ", text.size(), " bytes; at most ", kMostTextBytes, " are accepted");
    if (text.find_first_of("\n\t") != std::string::npos || printable(text) != text)
      refuse(key, "'", key, "' is ", quote_text(text), ": control characters are not accepted");
    return text;
  }
  std::string name(const char* key) const {
    std::string name = text(key);
    if (name.empty()) refuse(key, "'", key, "' is empty");
    return name;
  }

  bool flag(const char* key) const {
    const Json& value = member(key);
    if (!value.is_boolean()) refuse(key, "'", key, "' is ", shown(value), "; expected true or false");
    return value.get<bool>();
  }

  /// 80e9 is one, too: nobody counts nine zeros with pleasure.
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const Json& value = member(key);
    const double number = value.is_number() ? value.get<double>() : NAN;
    const bool is_whole = value.is_number_integer() || number == std::floor(number);
    if (!is_whole || !(number >= static_cast<double>(least) && number <= static_cast<double>(most)))
      refuse(key, "'", key, "' is ", shown(value), "; expected a whole number from ", least, " to ", most);
    return value.get<int64_t>();
  }

  double number(const char* key, double least, double most) const {
    const double number = any_number(key);
    if (!(number >= least && number <= most))
      refuse(key, "'", key, "' is ", shown(member(key)), "; expected a number from ", least, " to ", most);
    return number;
  }
  double number(const char* key, double least, double most, double left_out) const {
    return has(key) ? number(key, least, most) : left_out;
  }

  /// Nothing to a second is slower than one of it.
  double rate(const char* key, bool may_be_none) const {
    const double number = any_number(key);
    if (may_be_none && number == 0) return 0;
    if (!(number >= 1 && number <= kMostRate))
      refuse(key, "'", key, "' is ", shown(member(key)), "; expected a number from 1 to ", kMostRate,
             may_be_none ? ", or 0: no limit" : "");
    return number;
  }

  const Json& list(const char* key) const {
    const Json& value = member(key);
    const std::string heading = concat("[[", key, "]]");
    if (!value.is_array())
      refuse(key, "'", key, "' is ", shown(value), "; expected ", place_.is_toml ? "tables, each under " + heading : "a list");
    if (value.empty()) refuse(key, "'", key, "' is empty");
    return value;
  }

  /// Of a list's `index`th object.
  Fields entry(const char* key, size_t index, const std::vector<std::string>& keys) const {
    const toml::node* list = node_of(key);
    const toml::array* array = list ? list->as_array() : nullptr;
    const std::string title = place_.is_toml ? concat("[[", key, "]] ", index + 1) : concat(key, "[", index, "]");
    return {(*object_.find(key))[index], array ? array->get(index) : nullptr, place_, title, keys};
  }

  Fields part(const char* key, const std::string& title, const std::vector<std::string>& keys) const {
    const toml::node* node = node_of(key);
    return {member(key), node, place_, title, keys};
  }

 private:
  const toml::node* node_of(const std::string& key) const { return table_ && !key.empty() ? table_->get(key) : nullptr; }
  const char* kind_of_object() const { return place_.is_toml ? "a table" : "an object"; }

  double any_number(const char* key) const {
    const Json& value = member(key);
    return value.is_number() ? value.get<double>() : NAN;
  }

  std::string shown(const Json& value) const {
    if (value.is_number_float()) return concat(value.get<double>());
    if (value.is_number()) return value.dump();
    if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
    if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (value.is_object()) return kind_of_object();
    if (value.is_array()) return "a list";
    return place_.is_toml ? "a date or a time" : "null";
  }

  const Json& object_;
  const toml::node* node_;
  const toml::table* table_;
  const Place& place_;
  std::string title_;
};

}  // namespace cohort::cluster_file

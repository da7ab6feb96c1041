#pragma once
// One table of a TOML file whose every error is a line "FILE:LINE: [TABLE] KEY: what was expected, what was found".

#include <toml++/toml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"

namespace cohort::study {

class TomlTable {
 public:
  /// The whole file. `known`: the keys that it may have. Error(kBadInput) for others, with the nearest known one.
  TomlTable(std::string file, const toml::table& root, const std::vector<std::string>& known);

  bool has(const std::string& key) const { return table_ && table_->contains(key); }
  std::vector<std::string> keys() const;
  /// An empty one where the key is missing. Empty `known`: any keys. `or_else`: what else its reader takes, for the error ("a number").
  TomlTable table(const std::string& key, const std::vector<std::string>& known, const std::string& or_else = "") const;
  bool is_number(const std::string& key) const { return has(key) && table_->get(key)->is_number(); }
  bool is_list(const std::string& key) const { return has(key) && table_->get(key)->is_array(); }

  std::string text(const std::string& key, const std::string& fallback) const;
  int64_t whole(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const;
  double number(const std::string& key, double fallback, double minimum, double maximum) const;
  bool flag(const std::string& key, bool fallback) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<int64_t> wholes(const std::string& key, int64_t minimum, int64_t maximum) const;
  std::vector<double> numbers(const std::string& key) const;

  /// Error(kBadInput) at the line of the key, or of the table's heading where there is no such key ("": the heading).
  template <typename... Parts>
  [[noreturn]] void fail_at(const std::string& key, const Parts&... parts) const {
    fail(ErrorCode::kBadInput, place(has(key) ? table_->get(key) : nullptr), title(), has(key) ? printable_key(key) + ": " : "", parts...);
  }
  /// Runs `check` and gives its Error the place of the key.
  template <typename Check>
  void at(const std::string& key, const Check& check) const {
    try {
      check();
    } catch (const Error& error) {
      fail(error.code(), place(has(key) ? table_->get(key) : nullptr), title(), error.what());
    }
  }

 private:
  TomlTable(std::string file, std::string name, const toml::table* table, int64_t line)
      : file_(std::move(file)), name_(std::move(name)), table_(table), line_(line) {}
  static std::string printable_key(const std::string& key);
  void refuse_unknown(const std::vector<std::string>& known) const;
  std::string place(const toml::node* node) const;
  std::string title() const { return name_.empty() ? "" : "[" + name_ + "] "; }
  [[noreturn]] void fail_type(const std::string& key, const toml::node& node, const std::string& expected) const;
  const toml::array& list(const std::string& key, const std::string& expected) const;

  std::string file_, name_;
  const toml::table* table_;  // None where the file has no such table.
  int64_t line_ = 0;          // Of the heading; 0 where unknown.
};

}  // namespace cohort::study

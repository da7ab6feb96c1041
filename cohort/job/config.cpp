#include "cohort/job/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/job/specs/virtual_spec.h"

namespace cohort {
namespace {

constexpr const char* kFirstLine = "# The settings of a run, as Cohort writes them; the last line says that they are all here.\n";
constexpr const char* kLastLine = "# These are all.\n";

/// Whether a file written by whole_toml() was truncated. Files of users have neither line.
bool has_lost_its_end(const std::string& text) {
  const std::string first = kFirstLine;
  if (text.size() < first.size()) return !text.empty() && first.starts_with(text);
  return text.starts_with(first) && text.find(std::string("\n") + kLastLine) == std::string::npos;
}

/// A TOML value as text for Setting::set; nullopt for a table or a list.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* number = node.as_floating_point()) return toml_number(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace

void read_config_file(const std::string& path, Config& config) {
  if (!std::filesystem::exists(path)) fail(ErrorCode::kBadInput, path, ": no such file");
  const std::string text = read_small_file(path, size_t{1} << 20);
  if (has_lost_its_end(text))
    fail(ErrorCode::kBadInput, path, ": its end is missing ('", trim(kLastLine),
         "'), so settings may be missing too; put the whole file back: each checkpoint of the run holds its text, as \"config\" in "
         "manifest.json");
  read_config_text(text, path, config);
}

void read_config_text(const std::string& text, const std::string& path, Config& config) {
  check_toml_dots(text, path);
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    std::string description(error.description());
    std::replace(description.begin(), description.end(), '\n', ' ');  // It may quote the file.
    fail(ErrorCode::kBadInput, path, ":", error.source().begin.line, ": ", description);
  }
  struct Place {
    std::string key;
    uint32_t line;
  };
  std::map<std::string, Place> places;
  for (const auto& [key, node] : table) {
    std::string name(key.str());
    std::replace(name.begin(), name.end(), '_', '-');
    const auto where = [&, line = node.source().begin.line] { return concat(path, ":", line, ": "); };
    const Setting* setting = find_setting(name);
    if (!setting) {
      std::vector<std::string> names;
      for (const Setting& known : settings()) names.push_back(known.name);
      fail(ErrorCode::kBadInput, where(), "unknown setting '", key.str(), "'", did_you_mean(name, names));
    }
    const Place here{std::string(key.str()), node.source().begin.line};
    if (const auto [known, is_new] = places.emplace(name, here); !is_new) {
      const auto& [first, second] = known->second.line < here.line ? std::pair(known->second, here) : std::pair(here, known->second);
      fail(ErrorCode::kBadInput, path, ":", second.line, ": '", second.key, "' is the setting that line ", first.line, " gives as '",
           first.key, "'; leave one of them out");
    }
    const std::optional<std::string> value = text_of(node);
    if (!value) fail(ErrorCode::kBadInput, where(), "'", key.str(), "' is a table or a list; expected one value");
    try {
      setting->set(config, *value);
    } catch (const Error& error) {
      std::string sentence = error.what();  // TOML values may hold line breaks.
      std::replace(sentence.begin(), sentence.end(), '\n', ' ');
      fail(ErrorCode::kBadInput, where(), sentence);
    }
  }
}

std::string to_toml(const Config& config) {
  const Situation situation = situation_of(config);
  std::string out, group;
  if (!config.taken_from.empty()) out = "# The study " + toml_string(config.taken_from) + " chose batch size and hyperparameters.\n";
  for (const Setting& setting : settings()) {
    if (!is_given(config, setting) && !acts(setting.name, situation)) continue;
    if (setting.group != group) {
      out += (out.empty() ? "# " : "\n# ") + setting.group + "\n";
      group = setting.group;
    }
    std::string key = setting.name;
    std::replace(key.begin(), key.end(), '-', '_');
    out += key + " = " + setting.get(config) + "\n";
  }
  return out;
}

std::string whole_toml(const Config& config) { return kFirstLine + to_toml(config) + kLastLine; }

/// Checks members that a program set against the ranges of the command line.
static void check_members(const Config& config) {
  for (const Setting& setting : settings()) {
    if (!is_given(config, setting)) continue;
    Config again = config;
    setting.set(again, text_of(*toml::parse("value = " + setting.get(config)).get("value")).value());
  }
}

void check_config(const Config& config) {
  check_members(config);
  if (config.steps > 0 && config.epochs > 0)
    fail(ErrorCode::kBadInput, name_settings("both --steps "), config.steps, name_settings(" and --epochs "), config.epochs,
         " are given; give one of them");
  if (config.global_batch == 0)
    fail(ErrorCode::kBadInput, name_settings("--global-batch auto is for `cohort train --study DIR`; give a number here"));
  if (!config.goal.empty()) parse_goal(config.goal, config.metrics);
  parse_faults(config.inject);
  parse_remedy(config.remedy);
  if (!config.virtual_time.empty()) parse_virtual(config.virtual_time);
  if (!config.listen.empty()) parse_host_and_port(config.listen, name_settings("--listen"));
}

}  // namespace cohort

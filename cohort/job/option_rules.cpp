#include "cohort/job/option_rules.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/job/conditions.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {

/// The value of a key that is not its default; "" otherwise.
std::string value_of_key(const Layout& layout, const std::string& key) {
  const Json mine = to_json(layout), standard = to_json(Layout());
  if (!mine.contains(key) || (standard.contains(key) && standard[key] == mine[key])) return "";
  return mine[key].is_string() ? mine[key].get<std::string>() : mine[key].dump();
}

[[noreturn]] void refuse(const std::string& what, const OptionRule& rule, const Situation& situation) {
  const std::string instead =
      rule.instead == std::string("leave it out") ? rule.instead : concat(name_settings(rule.instead), ", or leave it out");
  fail(ErrorCode::kBadInput, what, " would do nothing here: it acts ", name_settings(rule.when), ", and ", rule.now(situation), "; ",
       instead);
}

bool is_ignored(const OptionRule& rule, const Setting& setting, const Situation& situation) {
  return rule.acts && !rule.acts(situation) && is_given(situation.config, setting) && setting.get(situation.config) != rule.off;
}

}  // namespace

std::string plain_value(const Setting& setting, const Config& config) { return text_of_toml(setting.get(config)); }

const std::vector<OptionRule>& layout_rules() {
  using namespace conditions;
  static const std::vector<OptionRule> table = {{{}, "dp", ""},
                                                {{}, "pp", ""},
                                                {{}, "tp", ""},
                                                {kWithReplicas, "zero", ""},
                                                {{}, "sync", ""},
                                                {kWithStages, "schedule", ""},
                                                {kWithMicroBatches, "microbatches", ""},
                                                {{}, "accumulate", ""},
                                                {{}, "precision", ""},
                                                {kWithRanks, "shares", ""},
                                                {kWithMemoryLimit, "recompute", ""},
                                                {kSendingGradients, "compress", ""},
                                                {kWithOwnCuts, "split", ""},
                                                {kMovingRanks, "order", ""},
                                                {kWithTensorParallel, "sequence", ""},
                                                {{}, "stages", ""}};
  return table;
}

std::optional<bool> is_text_data(const std::string& data) {
  if (data.starts_with("text:") || data == "synthetic:text" || data.starts_with("synthetic:text,")) return true;
  const std::string name = data.substr(0, data.find(':'));
  for (const char* numbers : {"fashion-mnist", "mnist", "cifar10", "folder", "csv", "npy", "safetensors", "synthetic"})
    if (name == numbers) return false;
  return std::nullopt;
}

bool is_served(const Config& config, const Layout& layout) { return has_server(layout.sync) && config.virtual_time.empty(); }

Situation situation_of(const Config& config) {
  Situation situation{.config = config, .layout = {}, .num_ranks = std::max(1, config.workers), .is_text = is_text_data(config.data)};
  try {
    situation.layout = parse_layout(config.layout, config.workers);
    situation.num_ranks = situation.layout.num_ranks();
  } catch (const Error&) {  // Reported where it is used.
  }
  return situation;
}

bool acts(const std::string& setting, const Situation& situation) {
  const auto rule =
      std::find_if(option_rules().begin(), option_rules().end(), [&](const OptionRule& each) { return each.name == setting; });
  return rule != option_rules().end() && (!rule->acts || rule->acts(situation));
}

void check_options(const Situation& situation) {
  for (const OptionRule& rule : layout_rules()) {
    const std::string value = value_of_key(situation.layout, rule.name);
    if (!value.empty() && rule.acts && !rule.acts(situation))
      refuse(concat(name_settings("--layout: "), rule.name, "=", value), rule, situation);
  }
  for (const OptionRule& rule : option_rules()) {
    const Setting& setting = *find_setting(rule.name);
    if (is_ignored(rule, setting, situation))
      refuse(concat(name_settings(concat("--", rule.name)), setting.is_flag ? "" : " " + plain_value(setting, situation.config)), rule,
             situation);
  }
}

std::vector<std::string> leave_out_overridden(Config& merged, const Config& file, const std::set<std::string>& command_line) {
  const Config defaults;
  std::vector<std::string> names;
  for (const OptionRule& rule : option_rules()) {
    const Setting& setting = *find_setting(rule.name);
    if (command_line.contains(rule.name) || is_ignored(rule, setting, situation_of(file)) ||
        !is_ignored(rule, setting, situation_of(merged)))
      continue;
    setting.copy(merged, defaults);
    names.emplace_back(rule.name);
  }
  return names;
}

}  // namespace cohort

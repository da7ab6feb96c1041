#include "cohort/base/resumed_config.h"

#include <toml++/toml.h>
#include <filesystem>
#include <system_error>

#include "cohort/base/error.h"

namespace cohort {
namespace {

/// The text that Setting::set takes for what Setting::get gave.
std::string plain_text(const std::string& toml_value) {
  if (!toml_value.starts_with('"')) return toml_value;
  return toml::parse("value = " + toml_value)["value"].value_or(std::string());
}

/// A length of one kind that is given now takes the place of one of the other kind from before.
void keep_one_length(const Config& before, Config& now) {
  if (now.steps != before.steps && now.steps > 0 && now.epochs == before.epochs) now.epochs = 0;
  if (now.epochs != before.epochs && now.epochs > 0 && now.steps == before.steps) now.steps = 0;
}

}  // namespace

std::string to_text(const SettingChange& change) { return concat("changed: ", change.setting, " ", change.from, " -> ", change.to); }

Config lasting_config(const Config& config) {
  Config lasting = config;
  lasting.resume = lasting.json = lasting.quiet = false;
  lasting.inject.clear();
  return lasting;
}

Config resumed_config(const ResumeRequest& request) {
  const std::string own_file = request.run + "/config.toml";
  Config before;
  read_config_file(own_file, before);
  Config config = before;
  std::error_code ignored;
  if (!request.file.empty() && !std::filesystem::equivalent(request.file, own_file, ignored)) {
    read_config_file(request.file, config);
    keep_one_length(before, config);
  }
  const Config without_options = config;
  for (const std::string& name : request.names) {
    const Setting* const setting = find_setting(name);
    setting->set(config, plain_text(setting->get(request.given)));
  }
  keep_one_length(without_options, config);
  config.run = request.run;
  config.resume = true;
  return config;
}

std::vector<SettingChange> changes_between(const Config& before, const Config& now) {
  Config from = lasting_config(before), to = lasting_config(now);
  from.run = to.run;
  std::vector<SettingChange> changes;
  for (const Setting& setting : settings())
    if (const std::string old_value = setting.get(from), new_value = setting.get(to); old_value != new_value)
      changes.push_back({setting.name, old_value, new_value});
  return changes;
}

}  // namespace cohort

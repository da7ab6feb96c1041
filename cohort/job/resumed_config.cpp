#include "cohort/job/resumed_config.h"

#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/job/settings/option_rules.h"

namespace cohort {
namespace {

void take_back(Config& config, const char* setting) { find_setting(setting)->copy(config, Config()); }

/// A length of one kind that is given now takes the place of one of the other kind from before.
void keep_one_length(const Config& before, Config& now) {
  if (now.steps != before.steps && now.steps > 0 && now.epochs == before.epochs) take_back(now, "epochs");
  if (now.epochs != before.epochs && now.epochs > 0 && now.steps == before.steps) take_back(now, "steps");
}

}  // namespace

std::string to_text(const SettingChange& change) { return concat("changed: ", change.setting, " ", change.from, " -> ", change.to); }

Config lasting_config(const Config& config) {
  Config lasting = config;
  for (const char* const setting : {"resume", "json", "quiet", "inject", "serve"}) take_back(lasting, setting);
  return lasting;
}

Config resumed_config(const ResumeRequest& request) {
  const std::string own_file = request.run + "/config.toml";
  Config before;
  read_config_file(own_file, before);
  if (before.given.empty())
    fail(ErrorCode::kBadInput, own_file, " holds no setting, and a run's own has many: it was cut; put the whole file back");
  if (before.layout == "auto") before.layout = "dp";  // What it meant in runs from before there was a planner.
  Config config = before;
  std::error_code ignored;
  if (!request.file.empty() && !std::filesystem::equivalent(request.file, own_file, ignored)) {
    read_config_file(request.file, config);
    keep_one_length(before, config);
  }
  const Config without_options = config;
  for (const std::string& name : request.names) find_setting(name)->copy(config, request.given);
  if (!config.init_from.empty() && before.init_from.empty())
    fail(ErrorCode::kBadInput, name_settings("--init-from "), config.init_from, name_settings(" would do nothing beside --resume: "),
         request.run, " goes on with its own weights; leave it out, or begin another run");
  find_setting("init-from")->copy(config, before);  // By whatever path it was named.
  keep_one_length(without_options, config);
  // What means something in the run alone, and no longer beside these options.
  leave_out_overridden(config, without_options, request.names);
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

#include "cohort/job/resumed_config.h"

#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/job/option_rules.h"

namespace cohort {
namespace {

void take_back(Config& config, const char* setting) { find_setting(setting)->copy(config, Config()); }

/// A new number of steps replaces earlier epochs, and vice versa.
void keep_one_length(const Config& before, Config& now) {
  if (now.steps != before.steps && now.steps > 0 && now.epochs == before.epochs) take_back(now, "epochs");
  if (now.epochs != before.epochs && now.epochs > 0 && now.steps == before.steps) take_back(now, "steps");
}

Config own_config(const std::string& run) {
  const std::string own_file = run + "/config.toml";
  Config own;
  read_config_file(own_file, own);
  if (own.given.empty())
    fail(ErrorCode::kBadInput, own_file, " holds no setting, and a run's own has many: it was cut; put the whole file back");
  if (own.layout == "auto") own.layout = "dp";  // Its meaning in older runs.
  return own;
}

}  // namespace

std::string to_text(const SettingChange& change) { return concat("changed: ", change.setting, " ", change.from, " -> ", change.to); }

Config persistent_config(const Config& config) {
  Config lasting = config;
  for (const char* const setting : {"resume", "json", "quiet", "inject", "serve"}) take_back(lasting, setting);
  return lasting;
}

Config trained_config(const ResumeRequest& request) {
  const Config own = own_config(request.run);
  if (request.trained.empty()) return own;
  Config trained;
  read_config_text(request.trained, "the settings of the newest checkpoint of " + request.run, trained);
  trained = persistent_config(trained);
  trained.run = own.run;                                                    // The run may have been moved.
  if (own.eval_every == 0) find_setting("eval-every")->copy(trained, own);  // Older checkpoints hold the effective value.
  return trained;
}

Config resumed_config(const ResumeRequest& request) {
  const std::string own_file = request.run + "/config.toml";
  const Config own = persistent_config(own_config(request.run)), before = trained_config(request);
  // Edits of the run's own file count like options.
  Config config = before;
  std::set<std::string> edited;
  for (const Setting& setting : settings()) {
    if (setting.get(own) == setting.get(before)) continue;
    setting.copy(config, own);
    edited.insert(setting.name);
  }
  keep_one_length(before, config);
  leave_out_overridden(config, before, edited);
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
  find_setting("init-from")->copy(config, before);  // By any path.
  keep_one_length(without_options, config);
  leave_out_overridden(config, without_options, request.names);
  config.run = request.run;
  config.resume = true;
  return config;
}

std::vector<SettingChange> changes_between(const Config& before, const Config& now) {
  Config from = persistent_config(before), to = persistent_config(now);
  from.run = to.run;
  std::vector<SettingChange> changes;
  for (const Setting& setting : settings())
    if (const std::string old_value = setting.get(from), new_value = setting.get(to); old_value != new_value)
      changes.push_back({setting.name, old_value, new_value});
  return changes;
}

}  // namespace cohort

#include "cohort/cli/train.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/names.h"
#include "cohort/comm/together.h"
#include "cohort/job/resumed_config.h"
#include "cohort/report/run_reader.h"

namespace cohort {
namespace {

/// --run, or the folder of the run's own config.toml, or the value in that file.
std::string name_of_run(const Arguments& given) {
  if (given.was_given("run")) return given.config.run;
  const std::filesystem::path file = given.file;
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (file.filename() == "config.toml" && holds_run(folder)) return folder;
  if (!given.config.run.empty()) return given.config.run;
  fail(ErrorCode::kBadInput, "--resume: no run given; run cohort train --run DIR --resume");
}

/// The settings of the newest checkpoint as TOML; "" if they are not known.
std::string settings_of_checkpoint(const std::string& run) {
  std::vector<std::string> names;
  try {
    names = list_checkpoints(run + "/checkpoints");
  } catch (const Error&) {  // Reported where the run is read.
  }
  for (const std::string& name : names) {
    try {
      const Checkpoint checkpoint = Checkpoint::open(run + "/checkpoints/" + name, /*verify_data=*/false);
      return checkpoint.state().is_object() ? checkpoint.state().value("config", "") : "";
    } catch (const std::exception&) {  // A damaged checkpoint is skipped, as in resuming.
    }
  }
  return "";
}

/// Applies `given` as options to a resumed run.
RunToResume with_settings_of(const Arguments& given, const std::string& run) {
  const ResumeRequest request{
      .run = run, .file = given.file, .given = given.config, .names = given.given, .trained = settings_of_checkpoint(run)};
  return {.config = resumed_config(request), .before = trained_config(request), .goes_on = true};
}

/// The arguments without what was chosen when the run began, which is not chosen again at each start.
Arguments without_choices(const Arguments& given) {
  Arguments left = given;
  if (given.config.layout == "auto")
    for (const char* const name : {"layout", "workers"}) left.given.erase(name);
  left.given.erase("study");
  if (given.config.global_batch == 0) left.given.erase("global-batch");
  return left;
}

/// Whether the run has ended by itself and the options do not make it longer.
bool is_done(const std::string& run, const RunToResume& found) {
  std::error_code ignored;
  if (!std::filesystem::exists(run + "/metrics.jsonl", ignored)) return false;
  const report::RunRecord record = report::read_run(run);
  if (record.state != report::RunState::kDone) return false;
  const std::vector<SettingChange> changes = changes_between(found.before, found.config);
  const bool is_longer = std::any_of(changes.begin(), changes.end(), [](const SettingChange& change) {
    return change.setting == "steps" || change.setting == "epochs" || change.setting == "goal" || change.setting == "patience";
  });
  if (is_longer) return false;
  std::vector<std::string> ignored_changes;
  for (const SettingChange& change : changes) {
    for (const char* const name : {"model", "optimizer", "global-batch", "batch-schedule", "seed"})
      if (change.setting == name)
        fail(ErrorCode::kBadInput, "--resume=auto: ", run, " was trained with --", name, " ", change.from, ", and this command has --",
             name, " ", change.to, "; give the same, or another --run folder");
    ignored_changes.push_back(to_text(change).substr(to_text(change).find(' ') + 1));
  }
  log_info(concat("--resume=auto: ", run, " is done, after ", record.done->step, " steps; nothing is left to do",
                  ignored_changes.empty() ? "" : ", also with other settings: " + join(ignored_changes, ", ")));
  return true;
}

/// Takes the folder and reads the run, in the process that holds the folder.
RunToResume look(const Arguments& given, std::unique_ptr<RunFolder>& folder) {
  Arguments here = given;
  here.config.run = name_of_run(given);
  folder = std::make_unique<RunFolder>(here.config);
  here.config.resume_auto = false;
  if (!folder->goes_on()) return {.config = here.config, .before = {}};
  RunToResume found = with_settings_of(without_choices(here), folder->path());
  found.is_done = is_done(folder->path(), found);
  return found;
}

Config read_text(const Json& text) {
  Config config;
  read_config_text(text.get<std::string>(), "the settings of rank 0", config);
  return config;
}

}  // namespace

RunToResume run_to_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder) {
  Arguments here = given;
  const std::string run = here.config.run = name_of_run(given);
  if (world.rank == 0) folder = std::make_unique<RunFolder>(here.config);
  if (std::error_code ignored; world.rank != 0 && !std::filesystem::exists(run + "/config.toml", ignored))
    return {.config = here.config, .before = here.config, .goes_on = true};
  return with_settings_of(given, run);
}

RunToResume run_to_begin_or_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder) {
  if (world.launcher == "none") return look(given, folder);
  Group group = Group::create(world, {.backend = given.config.backend, .timeout_seconds = given.config.timeout});
  Json found;
  together(group, "--resume=auto", [&] {
    if (world.rank != 0) return;
    const RunToResume here = look(given, folder);
    found = {{"goes_on", here.goes_on}, {"is_done", here.is_done}, {"run", here.config.run}};
    if (here.goes_on) found["config"] = to_toml(here.config), found["before"] = to_toml(here.before);
  });
  found = Json::parse(group.all_gather_text(found.dump(), "what --resume=auto found").front());
  RunToResume all{.config = given.config, .goes_on = found.at("goes_on"), .is_done = found.at("is_done")};
  all.config.run = found.at("run");
  all.config.resume_auto = false;
  if (all.goes_on) all.config = read_text(found.at("config")), all.before = read_text(found.at("before"));
  return all;
}

}  // namespace cohort

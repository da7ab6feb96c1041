#include "cohort/compress/fine_tuning.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/option_rules.h"
#include "cohort/train/run_folder.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

/// Settings copied from the original run.
const std::vector<std::string> kInheritedSettings = {
    "data",  "context", "image-size",   "val-samples", "skip-bad", "augment",      "plugin", "optimizer",       "momentum",  "beta1",
    "beta2", "eps",     "global-batch", "lr",          "loss",     "weight-decay", "seed",   "label-smoothing", "clip-norm", "precision"};

void copy_setting(const std::string& name, Config& to, const Config& from) { find_setting(name)->copy(to, from); }

/// Settings that may change when a training is resumed.
const std::set<std::string> kChangeableSettings = {
    "workers", "layout",       "backend",          "weights",          "shares",          "device",       "threads",
    "timeout", "grace",        "listen",           "inject",           "accumulate",      "prompt",       "bucket-bytes",
    "run",     "memory-limit", "checkpoint-every", "keep-checkpoints", "eval-every",      "test-samples", "noise-scale",
    "metrics", "sample-bytes", "resume",           "log-every",        "teacher-answers", "plugin",       "json",
    "quiet",   "serve"};

std::string value_or_none(const Setting& setting, const Config& config) {
  const std::string value = plain_value(setting, config);
  return value.empty() ? "none" : value;
}

void check_same_training(const Config& config) {
  Config there;
  read_config_file(config.run + "/config.toml", there);
  there = with_defaults(there);
  const Config wanted = with_defaults(config);
  for (const Setting& setting : settings())
    if (!kChangeableSettings.contains(setting.name) && setting.get(there) != setting.get(wanted))
      fail(ErrorCode::kBadInput, "--run ", config.run, " holds another run, with --", setting.name, " ", value_or_none(setting, there),
           " where this one has ", value_or_none(setting, wanted), "; give another --run");
}

}  // namespace

std::string fine_tuning_folder(const TrainedFile& file, const FineTuningRequest& request) {
  if (!request.run.empty()) return request.run;
  std::string name = file.given();
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (file.is_exported()) name = fs::path(name).replace_extension().string();
  else if (!holds_run(name))
    fail(ErrorCode::kBadInput, request.verb, ": --run NEWRUN is missing: ", name,
         " is not a run folder from whose name one could be derived");
  std::string how = request.how;
  std::replace(how.begin(), how.end(), ':', '-');
  return name + "-" + how;
}

Config fine_tuning_config(const TrainedFile& file, const FineTuningRequest& request, const std::string& model,
                          const std::string& init_from) {
  Config config;
  config.model = model;
  for (const std::string& name : kInheritedSettings) copy_setting(name, config, file.config());
  if (!request.data.empty()) config.data = request.data;
  if (!request.plugin.empty()) config.plugin = request.plugin;
  if (request.lr != Config::kAuto) config.lr = request.lr;
  config.steps = request.steps > 0 ? request.steps : std::max<int64_t>(1, file.step());
  config.schedule_lr = "linear";
  config.init_from = init_from;
  config.prune = request.prune;
  config.quantize_aware = request.quantize_aware;
  if (!config.quantize_aware.empty()) copy_setting("precision", config, Config());  // quantize-aware rounds by itself.
  if (!request.layout.empty()) config.layout = request.layout;
  config.workers = request.workers;
  config.threads = request.threads;
  config.quiet = request.quiet;
  config.checkpoint_every = std::max<int64_t>(1, config.steps / 10);
  config.run = fine_tuning_folder(file, request);
  const Situation situation = situation_of(config);
  if (acts("test-samples", situation)) config.test_samples = 0;  // The comparison is on the validation data.
  const Config defaults;
  for (const std::string& name : kInheritedSettings)
    if (!acts(name, situation)) copy_setting(name, config, defaults);
  return config;
}

FineTuningState find_fine_tuning(const Config& config) {
  std::error_code ignored;
  if (fs::exists(config.run, ignored) && !fs::is_directory(config.run, ignored))
    fail(ErrorCode::kBadInput, "--run ", config.run, " exists and is not a folder; give another --run");
  if (!holds_run(config.run) && !fs::exists(config.run + "/config.toml", ignored)) return FineTuningState::kNew;
  check_same_training(config);
  Config held;
  held.run = config.run;
  held.resume_auto = true;
  if (!RunFolder(held).goes_on()) return FineTuningState::kNew;
  std::vector<std::string> skipped;
  const std::optional<Checkpoint> newest = Checkpoint::open_latest(config.run + "/checkpoints", &skipped);  // The one that --resume takes.
  if (!newest) {
    for (const std::string& line : skipped) log_warning("checkpoint skipped: " + line);
    fail(ErrorCode::kBadInput, "--run ", config.run,
         " holds this training, but no checkpoint that can be read; remove it, or give another --run");
  }
  return newest->step() >= config.steps ? FineTuningState::kDone : FineTuningState::kBegun;
}

std::vector<std::string> fine_tuning_command(const Config& config, FineTuningState state) {
  const bool is_resumed = state == FineTuningState::kBegun;
  const Config defaults;
  std::vector<std::string> words = {"train"};
  if (is_resumed) words.insert(words.end(), {"--run", config.run, "--resume"});
  for (const Setting& setting : settings()) {
    // A resumed run keeps its settings; only where it runs may change.
    const bool is_placement = setting.name == "layout" || setting.name == "workers" || setting.name == "threads" || setting.name == "quiet";
    if ((is_resumed && !is_placement) || setting.get(config) == setting.get(defaults)) continue;
    if (setting.is_flag && plain_value(setting, config) != "true") continue;
    words.push_back("--" + setting.name);
    if (!setting.is_flag) words.push_back(plain_value(setting, config));
  }
  return words;
}

}  // namespace cohort

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/cli/verb.h"
#include "cohort/data/source.h"
#include "cohort/job/resumed_config.h"
#include "cohort/train/measured/auto_batch.h"
#include "cohort/train/measured/auto_layout.h"
#include "cohort/train/run/check_run.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/run/train_job.h"
#include "cohort/world/stop.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// --study becomes numbers here, before anything is started: ranks and the run's config.toml see those alone, and a note of the folder.
Config resolved_config(const Arguments& arguments) {
  Config config = arguments.config;
  if (config.study.empty() && config.global_batch != 0) return config;
  if (!is_given(config, *find_setting("global-batch"))) config.global_batch = 0;  // Nobody named a number.
  const World world = world_from_environment();
  const Layout layout =
      parse_layout(config.layout == "auto" ? "dp" : config.layout, world.launcher == "none" ? config.workers : world.size);
  AutoBatch chosen = resolve_auto_batch(config, [&](const std::string& setting) { return arguments.was_given(setting); }, layout);
  if (world.rank == 0) log_info(chosen.sentence);
  chosen.config.taken_from = config.study;
  find_setting("study")->copy(chosen.config, Config());
  return chosen.config;
}

/// The folder of --resume: --run, or that of the run's own config.toml, or what the file says.
std::string run_to_resume(const Arguments& given) {
  if (given.was_given("run")) return given.config.run;
  const std::filesystem::path file = given.file;
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (file.filename() == "config.toml" && holds_run(folder)) return folder;
  if (!given.config.run.empty()) return given.config.run;
  fail(ErrorCode::kBadInput, "--resume: which run? cohort train --run DIR --resume");
}

/// The run's own settings with the options over them; `before` receives the former. A rank of another launcher that is not the first may be
/// on a host that does not see the folder: then what it was started with counts, and ranks compare their configurations in any case.
Config config_to_resume(const Arguments& given, const std::string& run, bool must_be_there, Config& before) {
  if (std::error_code ignored; !must_be_there && !std::filesystem::exists(run + "/config.toml", ignored)) {
    Config config = given.config;
    config.run = run;
    return before = config;
  }
  read_config_file(run + "/config.toml", before);
  if (before.layout == "auto") before.layout = "dp";
  return resumed_config({.run = run, .file = given.file, .given = given.config, .names = given.given});
}

/// --layout auto becomes a layout, before ranks are forked or, where a launcher started them, by all of them together.
void plan_layout(Config& config, const DataSet& data, const World& world, TrainOptions& options) {
  const bool is_alone = world.launcher == "none";
  const AutoLayout chosen = is_alone ? choose_layout(config, data, !config.quiet && !config.json && ::isatty(STDERR_FILENO) == 1)
                                     : choose_layout_together(config, data, world);
  if (world.rank == 0)
    for (const std::string& sentence : chosen.sentences) log_info("auto: " + sentence);
  config = chosen.config;
  if (!chosen.plan.is_null()) options.plan = chosen.plan.dump(1) + "\n";
  options.predicted_step_seconds = chosen.predicted_step_seconds;
  options.predicted_equal_waste = chosen.predicted_equal_waste;
  options.predicted_equal_step_seconds = chosen.predicted_equal_step_seconds;
}

int run_train(const Arguments& given) {
  // One process of the job has the folder: this one, unless another launcher started it as a rank that is not the first. For a run that
  // goes on it is taken before anything is read from it.
  const World world_here = world_from_environment();
  const bool takes_folder = world_here.rank == 0, is_alone = world_here.launcher == "none";
  if (is_alone) catch_first_stop_signal();  // A launcher's ranks stop together, after a step.
  Arguments arguments = given;
  std::unique_ptr<RunFolder> folder;
  TrainOptions options{.folder_is_held = takes_folder};
  if (given.config.resume) {
    arguments.config.run = run_to_resume(given);
    if (takes_folder) folder = std::make_unique<RunFolder>(arguments.config);
    Config before;
    arguments.config = config_to_resume(given, arguments.config.run, takes_folder, before);
    arguments.config = resolved_config(arguments);
    options.changes = changes_between(before, arguments.config);
  } else {
    arguments.config = resolved_config(given);
  }
  Config& config = arguments.config;
  const bool plans = config.layout == "auto";
  if (plans && config.resume)
    fail(ErrorCode::kBadInput, "--layout auto with --resume: a run that goes on is not planned anew; leave --layout out, or name one");
  if (plans) config.layout = "dp";  // What is wrong with the other options is said before anything is measured.
  check_config(config);
  Job job = job_of(arguments);
  if (takes_folder && !folder) folder = std::make_unique<RunFolder>(config);
  if (folder) job.config.run = config.run = folder->path();
  load_plugin(config);
  // Read before ranks are forked: once for all of them, and a bad file ends the command before anything is started.
  const DataSet data = open_data(config);
  check_data(job, data);
  if (plans) {
    plan_layout(config, data, world_here, options);
    job = resolve(config, is_alone ? config.workers : world_here.size, job.one_host);
    check_data(job, data);
  }
  if (is_alone && stop_requested()) {
    log_info("interrupted before the first step; nothing was saved");
    return static_cast<int>(ErrorCode::kInterrupted);
  }
  std::string failure;
  const int code = run_job(
      job, [&](const World& world) { return train(job, data, world, options).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0; },
      &failure);
  // From here, where a rank that was killed is known as well.
  if (folder && !failure.empty()) folder->record_failure(code, failure, config.json);
  return code;
}

}  // namespace

Verb train_verb() {
  return {
      .name = "train",
      .summary = "Trains a model on one or many workers; writes a run folder with metrics, checkpoints and report.html.",
      .examples =
          {"cohort train --model cnn --data fashion-mnist --workers 2 --epochs 2",
           "cohort train --model transformer --data text:/usr/share/common-licenses --workers 2 --optimizer adamw --lr 0.003 --steps 500",
           "cohort train --model fc --data fashion-mnist --steps 200 --checkpoint-every 100 --run runs/x",
           "cohort train --run runs/x --resume --workers 2 --steps 400",
           "mpirun -n 2 cohort train --model resnet8 --data fashion-mnist --run runs/mpi",
           "torchrun --nproc-per-node 2 --no-python -- cohort train --model fc --data fashion-mnist --run runs/torchrun"},
      .positional_help = "config.toml, whose settings the options override",
      .settings = all_settings(),
      .takes_file = true,
      .run = run_train};
}

}  // namespace cohort

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/memory_advice.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/train_forecast.h"
#include "cohort/cli/train_resume.h"
#include "cohort/data/source/source.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/resumed_config.h"
#include "cohort/models/registry.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/report/live/http_server.h"
#include "cohort/run/train_job.h"
#include "cohort/train/check_run.h"
#include "cohort/train/run_folder.h"
#include "cohort/tune/auto_batch.h"
#include "cohort/tune/auto_layout.h"
#include "cohort/world/stop.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// Batch and hyperparameters of the study that `config` names; of it only a note stays.
AutoBatch taken_from_study(const Config& config, const Arguments& arguments, const Layout& layout) {
  AutoBatch chosen = resolve_auto_batch(config, [&](const std::string& setting) { return arguments.was_given(setting); }, layout);
  chosen.config.taken_from = config.study;
  find_setting("study")->copy(chosen.config, Config());
  return chosen;
}

/// --study becomes numbers here, before anything is started: ranks and the run's config.toml see those alone, and a note of the folder.
/// With --layout auto and no batch that was given, `goal` is set instead, and batch and hyperparameters wait for the plan.
Config resolved_config(const Arguments& arguments, std::optional<AutoGoal>& goal) {
  Config config = arguments.config;
  if (config.study.empty() && config.global_batch != 0) return config;
  if (!is_given(config, *find_setting("global-batch"))) config.global_batch = 0;  // Nobody named a number.
  const World world = world_from_environment();
  const int workers = world.launcher == "none" ? config.workers : world.size;
  if (config.layout == "auto" && !config.study.empty() && config.global_batch == 0) {
    const Config given = config;
    config = workload_of_study(given, [&](const std::string& setting) { return arguments.was_given(setting); });
    goal = {.curve = study::curve_of_study(given.study), .settle = [given, arguments](const Config& planned, const Layout& layout) {
              Config asked = given;
              asked.global_batch = planned.global_batch, asked.workers = planned.workers;
              return taken_from_study(asked, arguments, layout).config;
            }};
    // Until then the largest that may be chosen; a worker has a sample of it.
    config.global_batch = std::max<int64_t>(workers, goal->curve.useful_points().back().batch_size);
    find_setting("study")->copy(config, Config());
    return config;
  }
  const Layout layout = parse_layout(config.layout == "auto" ? "dp" : config.layout, workers);
  const AutoBatch chosen = taken_from_study(config, arguments, layout);
  if (world.rank == 0) log_info(chosen.sentence);
  return chosen.config;
}

/// What can be refused before anything is measured, where that would take seconds: with --layout auto and --profile.
void check_before_measuring(const Arguments& given, const Job& job, bool plans, int num_ranks, bool is_alone) {
  const std::optional<bool> is_text = is_text_data(job.config.data);
  if (plans) {
    job.devices.check(num_ranks);
    check_any_layout(job.config, num_ranks, is_alone, is_text);
  }
  if (plans || given.option("profile", "").empty()) return;
  check_run(job, is_text);
  if (!is_step(job.layout.sync))
    fail(ErrorCode::kBadInput, "--profile ", given.option("profile", ""),
         ": only sync=step is forecast, and --layout has sync=", job.layout.sync, "; leave --profile out");
}

/// --layout auto becomes a layout, before ranks are forked or, where a launcher started them, by all of them together.
void plan_layout(Config& config, const DataSet& data, const World& world, const KnownBefore& known, const AutoGoal* goal,
                 TrainOptions& options) {
  const bool is_alone = world.launcher == "none";
  const bool shows = shows_progress(config);
  const AutoLayout chosen =
      is_alone ? choose_layout(config, data, shows, known, goal) : choose_layout_together(config, data, world, known, goal);
  if (world.rank == 0)
    for (const std::string& sentence : chosen.sentences) log_info("auto: " + sentence);
  config = chosen.config;
  if (!chosen.plan.is_null()) options.forecast = {.name = "--layout auto", .problem = chosen.problem, .plan = chosen.plan};
}

/// Nothing was said at all: what that would come to, and what is missing.
void refuse_nothing(const Arguments& given) {
  if (!given.given.empty() || !given.file.empty() || !given.options.empty()) return;
  const Config& config = given.config;
  std::vector<std::string> names;
  for (const auto& [name, entry] : registered_models()) names.push_back(name);
  fail(ErrorCode::kBadInput, "train: which model? This alone would be: cohort train --model ", config.model, " --data ", config.data,
       " --epochs ", config.epochs > 0 ? config.epochs : 1, " --global-batch ", config.global_batch, " --optimizer ", config.optimizer,
       ", on one worker; name a model with --model (", join(names, " "), ") and its data with --data, or see `cohort train -h`");
}

int run_train(const Arguments& given) {
  refuse_nothing(given);
  ::signal(SIGPIPE, SIG_IGN);  // Who reads the lines may leave: that is a write that fails, and no end of a training.
  // One process of the job has the folder: this one, unless another launcher started it as a rank that is not the first. For a run that
  // goes on it is taken before anything is read from it.
  const World world_here = world_from_environment();
  const bool takes_folder = world_here.rank == 0, is_alone = world_here.launcher == "none";
  if (takes_folder && given.config.serve != Config::kNotServed) report::check_port(given.config.serve);
  if (is_alone) catch_first_stop_signal();  // A launcher's ranks stop together, after a step.
  Arguments arguments = given;
  std::unique_ptr<RunFolder> folder;
  std::optional<AutoGoal> goal;
  Config before;  // Of a run that goes on.
  TrainOptions options{.folder_is_held = takes_folder};
  if (given.config.resume || given.config.resume_auto) {
    const RunToResume found =
        given.config.resume ? run_to_resume(given, world_here, folder) : run_to_begin_or_resume(given, world_here, folder);
    if (found.is_done) return 0;
    arguments.config = found.config, before = found.before;
  }
  arguments.config = resolved_config(arguments, goal);
  Config& config = arguments.config;
  const bool plans = config.layout == "auto";
  if (plans && config.resume)
    fail(ErrorCode::kBadInput, "--layout auto with --resume: a run that goes on is not planned anew; leave --layout out, or name one");
  if (!config.virtual_time.empty() && (plans || !given.option("profile", "").empty()))
    fail(ErrorCode::kBadInput, plans ? "--layout auto" : "--profile",
         " with --virtual is not supported: plans and forecasts are of real workers; ",
         plans ? "name a layout, as sync=async" : "leave it out");
  if (plans) config.layout = "dp";  // What is wrong with the other options is said before anything is measured.
  check_config(config);
  Job job = job_of(arguments);
  config.device = job.config.device;
  if (config.resume) options.changes = changes_between(before, config);
  const int most_ranks = is_alone ? std::max(1, plans ? config.workers : job.num_ranks()) : world_here.size;
  if (takes_folder) check_calibration_option(given.option("calibration", ""));
  if (takes_folder && !folder) folder = std::make_unique<RunFolder>(config);
  if (folder) job.config.run = config.run = folder->path();
  load_plugin(config);
  check_before_measuring(given, job, plans, most_ranks, is_alone);
  // Read before ranks are forked: once for all of them, and a bad file ends the command before anything is started.
  const DataSet data = open_data(config);
  check_data(job, data);
  std::optional<ModelProfile> profile;
  if (!plans) profile = profile_of_run(given, config, most_ranks, data, world_here);
  if (plans) {
    try {
      check_model_for_auto(job, data, most_ranks, is_alone);
      const double start = steady_seconds();
      const std::string path = given.option("profile", "");
      std::error_code ignored;
      const bool is_kept = std::filesystem::exists(path, ignored);
      profile = profile_of_run(given, config, most_ranks, data, world_here);
      const KnownBefore known{.profile = profile,
                              .calibration_file = calibration_file(given.option("calibration", "")),
                              .measured_seconds = is_kept ? 0 : steady_seconds() - start};
      plan_layout(config, data, world_here, known, goal ? &*goal : nullptr, options);
      if (folder) config.run = folder->path();  // What a study settles comes from the options alone.
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInfeasible && takes_folder) advise_on_memory(job, is_alone);
      throw;
    }
    job = resolve(config, is_alone ? config.workers : world_here.size, job.one_host);
    check_data(job, data);
  }
  find_forecast(arguments, job, world_here, profile, options);
  if (is_alone && stop_requested()) {
    log_info(kStoppedBeforeFirstStep);
    return static_cast<int>(ErrorCode::kInterrupted);
  }
  std::string failure;
  const int code = run_job(
      job, [&](const World& world) { return train(job, data, world, options).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0; },
      &failure);
  // From here, where a rank that was killed is known as well.
  if (folder && !failure.empty()) folder->record_failure(code, failure, config.json);
  if (takes_folder && is_memory_death(failure)) advise_on_memory(job, is_alone);
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
           "cohort train --model fc --data fashion-mnist --steps 200 --run runs/job --resume=auto",
           "cohort train --model fc --data fashion-mnist --steps 200 --serve",
           "mpirun -n 2 cohort train --model resnet8 --data fashion-mnist --run runs/mpi",
           "torchrun --nproc-per-node 2 --no-python -- cohort train --model fc --data fashion-mnist --run runs/torchrun"},
      .positional_help = "config.toml, whose settings the options override",
      .settings = all_settings(),
      .takes_file = true,
      .options = {{"profile", "FILE.json",
                   "What the layers cost here, as cohort plan --profile keeps it; not there: measured first, and written. The run's step "
                   "and memory are forecast from it, whatever the layout, and stand beside what is measured"},
                  {"calibration", "FILE",
                   "Where the errors of forecasts are kept, from which the next intervals come; none: nowhere (default: "
                   "cohort/calibration.jsonl in the user's cache)"}},
      .run = run_train};
}

}  // namespace cohort

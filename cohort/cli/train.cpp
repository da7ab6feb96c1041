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
#include "cohort/cli/train.h"
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

/// The configuration with batch and hyperparameters of its study, whose folder is kept as a note only.
AutoBatch taken_from_study(const Config& config, const Arguments& arguments, const Layout& layout) {
  AutoBatch chosen = resolve_auto_batch(config, [&](const std::string& setting) { return arguments.was_given(setting); }, layout);
  chosen.config.taken_from = config.study;
  find_setting("study")->copy(chosen.config, Config());
  return chosen;
}

/// Replaces --study by the numbers of the study before anything is started: ranks and the run's config.toml have only these, and a note of
/// the folder. With --layout auto and no given batch `goal` is set instead, and the plan decides batch and hyperparameters.
Config resolved_config(const Arguments& arguments, std::optional<AutoGoal>& goal) {
  Config config = arguments.config;
  if (config.study.empty() && config.global_batch != 0) return config;
  if (!is_given(config, *find_setting("global-batch"))) config.global_batch = 0;  // No number was given.
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
    // Until then the largest batch that may be chosen, with at least one sample for each worker.
    config.global_batch = std::max<int64_t>(workers, goal->curve.useful_points().back().batch_size);
    find_setting("study")->copy(config, Config());
    return config;
  }
  const Layout layout = parse_layout(config.layout == "auto" ? "dp" : config.layout, workers);
  const AutoBatch chosen = taken_from_study(config, arguments, layout);
  if (world.rank == 0) log_info(chosen.sentence);
  return chosen.config;
}

/// Errors that need no measurement, reported before one that takes seconds: with --layout auto and --profile.
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

/// Replaces --layout auto by a layout: before ranks are forked, or under a launcher by all ranks together.
void plan_layout(Config& config, const DataSet& data, const World& world, const KnownInputs& known, const AutoGoal* goal,
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

/// Refuses `cohort train` without any option.
void refuse_no_options(const Arguments& given) {
  if (!given.given.empty() || !given.file.empty() || !given.options.empty()) return;
  const Config& config = given.config;
  std::vector<std::string> names;
  for (const auto& [name, entry] : registered_models()) names.push_back(name);
  fail(ErrorCode::kBadInput, "train: no model given. Without options this would run: cohort train --model ", config.model, " --data ",
       config.data, " --epochs ", config.epochs > 0 ? config.epochs : 1, " --global-batch ", config.global_batch, " --optimizer ",
       config.optimizer, ", on one worker; name a model with --model (", join(names, " "),
       ") and its data with --data, or see `cohort train -h`");
}

/// One `cohort train`. Each step settles more of the configuration.
class TrainCommand {
 public:
  explicit TrainCommand(const Arguments& given)
      : given_(given),
        world_(world_from_environment()),
        holds_folder_(world_.rank == 0),
        is_alone_(world_.launcher == "none"),
        arguments_(given),
        options_{.folder_is_held = holds_folder_} {}

  int run() {
    if (holds_folder_ && given_.config.serve != Config::kNotServed) report::check_port(given_.config.serve);
    if (is_alone_) catch_first_stop_signal();  // A launcher's ranks stop together, after a step.
    if (!find_run_to_resume()) return 0;
    asked() = resolved_config(arguments_, goal_);
    plans_ = asked().layout == "auto";
    check_planning();
    make_job();
    take_folder();
    load_plugin(config());
    check_before_measuring(given_, job_, plans_, most_ranks_, is_alone_);
    // Read before ranks are forked: once for all of them, and a bad file ends the command before anything is started.
    const DataSet data = open_data(config());
    plans_ ? check_data(job_, data) : check_job(job_, data);
    if (plans_) plan(data);
    else profile_ = profile_of_run(given_, config(), most_ranks_, data, world_);
    find_forecast(arguments_, job_, world_, profile_, options_);
    if (is_alone_ && stop_requested()) {
      log_info(kStoppedBeforeFirstStep);
      return static_cast<int>(ErrorCode::kInterrupted);
    }
    return train_in_ranks(data);
  }

 private:
  /// The configuration until there is a job,
  Config& asked() { return arguments_.config; }
  /// and from then on.
  Config& config() { return job_.config; }

  /// --resume and --resume=auto. Returns whether there is anything to do.
  bool find_run_to_resume() {
    if (!given_.config.resume && !given_.config.resume_auto) return true;
    const RunToResume found =
        given_.config.resume ? run_to_resume(given_, world_, folder_) : run_to_begin_or_resume(given_, world_, folder_);
    asked() = found.config, before_ = found.before;
    return !found.is_done;
  }

  void check_planning() {
    if (plans_ && asked().resume)
      fail(ErrorCode::kBadInput, "--layout auto with --resume: a run that goes on is not planned anew; leave --layout out, or name one");
    if (!asked().virtual_time.empty() && (plans_ || !given_.option("profile", "").empty()))
      fail(ErrorCode::kBadInput, plans_ ? "--layout auto" : "--profile",
           " with --virtual is not supported: plans and forecasts are of real workers; ",
           plans_ ? "name a layout, as sync=async" : "leave it out");
  }

  /// With --layout auto that of plain data parallelism, so that other wrong options are reported before anything is measured.
  void make_job() {
    if (plans_) asked().layout = "dp";
    check_config(asked());
    job_ = job_from_arguments(arguments_);
    if (config().resume) options_.changes = changes_between(before_, config());
    most_ranks_ = is_alone_ ? std::max(1, plans_ ? config().workers : job_.num_ranks()) : world_.size;
  }

  /// One process of the job has the folder: this one, unless another launcher started it as a rank that is not the first. A run that is
  /// resumed had its folder taken before anything was read from it.
  void take_folder() {
    if (!holds_folder_) return;
    check_calibration_option(given_.option("calibration", ""));
    if (!folder_) folder_ = std::make_unique<RunFolder>(config());
    config().run = folder_->path();
  }

  /// Chooses the layout of --layout auto.
  void plan(const DataSet& data) {
    try {
      check_model_for_auto(job_, data, most_ranks_, is_alone_);
      const double start = steady_seconds();
      std::error_code ignored;
      const bool was_measured = std::filesystem::exists(given_.option("profile", ""), ignored);
      profile_ = profile_of_run(given_, config(), most_ranks_, data, world_);
      const KnownInputs known{.profile = profile_,
                              .calibration_file = calibration_file(given_.option("calibration", "")),
                              .measured_seconds = was_measured ? 0 : steady_seconds() - start};
      plan_layout(config(), data, world_, known, goal_ ? &*goal_ : nullptr, options_);
      if (folder_) config().run = folder_->path();  // The study's settings have replaced the path.
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInfeasible && holds_folder_) advise_on_memory(job_, is_alone_);
      throw;
    }
    job_ = resolve(config(), is_alone_ ? config().workers : world_.size, job_.one_host);
    check_job(job_, data);
  }

  int train_in_ranks(const DataSet& data) {
    std::string failure;
    const auto body = [&](const World& world) {
      return train(job_, data, world, options_).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
    };
    const int code = run_job(job_, body, &failure);
    // A killed rank is known only here.
    if (folder_ && !failure.empty()) folder_->record_failure(code, failure, config().json);
    if (holds_folder_ && is_memory_death(failure)) advise_on_memory(job_, is_alone_);
    return code;
  }

  const Arguments& given_;
  const World world_;
  const bool holds_folder_, is_alone_;
  Arguments arguments_;
  Job job_;
  Config before_;  ///< The settings of the newest checkpoint of a run that is resumed.
  std::unique_ptr<RunFolder> folder_;
  std::optional<AutoGoal> goal_;
  std::optional<ModelProfile> profile_;
  TrainOptions options_;
  bool plans_ = false;
  int most_ranks_ = 1;
};

int run_train(const Arguments& given) {
  refuse_no_options(given);
  ::signal(SIGPIPE, SIG_IGN);  // A reader of the lines may leave: then a write fails, and the training goes on.
  return TrainCommand(given).run();
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

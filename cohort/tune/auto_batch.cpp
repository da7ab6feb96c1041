#include "cohort/tune/auto_batch.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/goal_curve.h"
#include "cohort/study/spec/spec.h"
#include "cohort/trials/trial_step.h"

namespace cohort {
namespace {

using study::BatchSpec;
using study::StepsToResult;
using study::StudySpec;
using study::WorthCell;

/// The user's configuration, into which what was not given is taken over.
class Settings {
 public:
  Settings(const Config& config, const std::function<bool(const std::string&)>& was_given)
      : user_(config), taken_(config), was_given_(was_given) {}

  const Config& taken() const { return taken_; }
  bool given(const std::string& name) const {
    const Setting& setting = *find_setting(name);
    return was_given_(name) || setting.get(user_) != setting.get(Config());
  }
  void set(const std::string& name, const std::string& value) { find_setting(name)->set(taken_, value); }
  void take(const std::string& name, const std::string& value) {
    if (!given(name)) set(name, value);
  }
  void take(const std::string& name, double value) { take(name, study::number_text(value)); }
  void take(const std::string& name, int64_t value) { take(name, std::to_string(value)); }
  /// For what the curve was measured with: another value would make it another curve.
  void require(const std::string& name, const std::string& value) {
    const Setting& setting = *find_setting(name);
    set(name, value);
    if (given(name) && setting.get(user_) != setting.get(taken_))
      fail(ErrorCode::kBadInput, name_settings("--" + name), " ", setting.get(user_), " contradicts the study ", user_.study,
           ", which was made with ", setting.get(taken_), name_settings("; leave --" + name), name_settings(" or --study out"));
  }

 private:
  const Config user_;
  Config taken_;
  const std::function<bool(const std::string&)>& was_given_;
};

std::string workers_text(int64_t number) { return concat(number, number == 1 ? " worker" : " workers"); }

/// What a folder must hold, or which command makes it.
std::string file_of_study(const std::string& folder, const std::string& name, const std::string& advice) {
  const std::string path = folder + "/" + name;
  if (!std::filesystem::exists(path)) fail(ErrorCode::kBadInput, path, ": no such file; ", advice);
  return path;
}

/// Steps of each batch size to the goal.
struct Curve {
  std::string goal, advice;  ///< Advice: the command that makes the files.
  std::vector<StepsToResult> rows;
  std::vector<int64_t> left_out;  ///< Past the flat point.
  std::string flat;               ///< What is said of it.
};

Curve read_curve(const std::string& folder, int num_workers) {
  Curve curve{.advice = concat("make it with `cohort study report ", folder, " --workers ", num_workers, "`")};
  if (!std::filesystem::exists(folder + "/study.db")) file_of_study(folder, "steps_curve.csv", curve.advice);
  curve.rows = study::steps_of_study(folder, &curve.goal);
  if (std::none_of(curve.rows.begin(), curve.rows.end(), [](const StepsToResult& row) { return row.steps.value_or(0) > 0; })) return curve;
  const study::GoalCurve goal = study::goal_curve(folder, curve.goal, curve.rows);
  curve.left_out = goal.left_out;
  if (!goal.left_out.empty()) curve.flat = goal.sentence();
  return curve;
}

/// The row of a batch size that the user named.
const StepsToResult& row_of(const Curve& curve, const std::string& folder, int64_t batch_size) {
  std::vector<std::string> reached;
  for (const StepsToResult& row : curve.rows) {
    if (!row.steps) continue;
    if (row.batch_size == batch_size) return row;
    reached.push_back(std::to_string(row.batch_size));
  }
  fail(ErrorCode::kBadInput, name_settings("--study "), folder, ": batch size ", batch_size, " is none of those that reached ", curve.goal,
       " there (", reached.empty() ? "none did" : join(reached, " "), "); take one of them, or auto");
}

/// The cells of that number of workers; the best of them first.
std::vector<WorthCell> cells_for(const Curve& curve, const std::string& folder, int num_workers) {
  const auto times = study::read_step_times(file_of_study(folder, "step_times.csv", curve.advice));
  std::set<int> measured;
  for (const study::StepTime& time : times) measured.insert(time.num_workers);
  if (!measured.contains(num_workers)) {
    std::vector<std::string> numbers;
    for (const int number : measured) numbers.push_back(std::to_string(number));
    fail(ErrorCode::kBadInput, name_settings("--global-batch auto for "), workers_text(num_workers), ": ", folder,
         "/step_times.csv has step times of ", numbers.empty() ? "no" : join(numbers, ", "),
         " workers; measure them on a machine with as many cores with `cohort study report ", folder, " --workers ", num_workers,
         "`, or give ", name_settings("--global-batch"), " a number");
  }
  std::vector<WorthCell> cells;
  for (const WorthCell& cell : study::worth_of_workers(curve.rows, times).cells)
    if (cell.num_workers == num_workers) cells.push_back(cell);
  const auto is_past = [&](const WorthCell& cell) {
    return std::find(curve.left_out.begin(), curve.left_out.end(), cell.batch_size) != curve.left_out.end();
  };
  if (!std::all_of(cells.begin(), cells.end(), is_past)) std::erase_if(cells, is_past);
  if (cells.empty())
    fail(ErrorCode::kBadInput, name_settings("--global-batch auto for "), workers_text(num_workers), ": no batch size of ", folder,
         " that has step times reached ", curve.goal, name_settings("; give --global-batch a number, or ask `cohort study report "), folder,
         "` for an easier goal");
  std::stable_sort(cells.begin(), cells.end(), [](const WorthCell& a, const WorthCell& b) { return a.seconds < b.seconds; });
  return cells;
}

void require_workload(const StudySpec& spec, Settings& settings) {
  settings.require("model", spec.model);
  settings.require("data", spec.data);
  settings.require("optimizer", spec.optimizer);
  if (is_text_data(spec.data).value_or(true)) settings.require("context", std::to_string(spec.context));
  settings.require("val-samples", std::to_string(spec.val_samples));
  if (spec.image_size > 0) settings.require("image-size", std::to_string(spec.image_size));
}

/// That a trial may have.
double most_label_smoothing(const StudySpec& spec) {
  double most = 0;
  for (const study::BatchSpec& batch : spec.batches)
    for (const study::Metaparameter& parameter : batch.space) {
      if (parameter.name != "label_smoothing") continue;
      most = std::max(most, parameter.maximum);
      for (const double value : parameter.values) most = std::max(most, value);
    }
  return most;
}

void take_metaparameters(const StudySpec& spec, const TrialSchedule& trial, Settings& settings) {
  const LearningRate& rate = trial.learning_rate;
  settings.take("lr", rate.rate);
  if (spec.optimizer == "momentum" || spec.optimizer == "nesterov") settings.take("momentum", trial.rule.momentum);
  if (spec.optimizer == "adam" || spec.optimizer == "adamw") {
    settings.take("beta1", trial.rule.beta1);
    settings.take("beta2", trial.rule.beta2);
    settings.take("eps", trial.rule.eps);
  }
  settings.take("weight-decay", trial.rule.weight_decay);
  settings.take("label-smoothing", trial.label_smoothing);
  if (trial.label_smoothing > 0) settings.take("label-smoothing-over", trial.label_smoothing_over);
  settings.take("warmup-steps", rate.warmup_steps);
  if (rate.schedule == LearningRate::Schedule::kConstant || settings.given("schedule-lr")) return;
  settings.take("schedule-lr", std::string("linear"));
  settings.take("lr-end-factor", rate.end_factor);
  settings.take("decay-steps", rate.decay_steps);
}

/// Goal, budget and evaluations, where the user does not say how long to train.
void take_length(const BatchSpec& batch, int64_t steps, const std::string& goal, Settings& settings) {
  bool goal_is_known = true;
  try {
    parse_goal(goal);
  } catch (const Error&) {
    goal_is_known = false;  // A precision, say: `train` measures none, so the steps alone end the run.
  }
  if (goal_is_known) settings.take("goal", goal);
  if (!settings.given("epochs")) settings.take("steps", goal_is_known ? std::max(batch.train_steps, steps) : steps);
  settings.take("eval-every", std::max<int64_t>(1, (steps + 19) / 20));
}

/// "batch size 512 for 2 workers: 430 steps x 3.1 ms = 1.33 s to val_error<0.12 (1.1 s to 1.9 s); 256 would take ..."
std::string why(const std::vector<WorthCell>& cells, const std::string& goal) {
  const WorthCell& best = cells.front();
  std::string text =
      concat("batch size ", best.batch_size, " for ", workers_text(best.num_workers), ": ", with_commas(static_cast<int64_t>(best.steps)),
             " steps x ", human_seconds(best.step_seconds), " = ", human_seconds(best.seconds), " to ", goal, " (",
             human_seconds(best.seconds_low), " to ", std::isinf(best.seconds_high) ? "unknown" : human_seconds(best.seconds_high), ")");
  std::vector<WorthCell> others(cells.begin() + 1, cells.end());
  std::sort(others.begin(), others.end(), [](const WorthCell& a, const WorthCell& b) { return a.batch_size < b.batch_size; });
  std::vector<std::string> times;
  for (const WorthCell& cell : others) times.push_back(concat(cell.batch_size, " would take ", human_seconds(cell.seconds)));
  return times.empty() ? text : text + "; " + join(times, ", ");
}

StudySpec read_study_spec(const std::string& folder) {
  StudySpec spec = study::read_spec(file_of_study(
      folder, "study.toml", name_settings("--study takes the folder of a study that was run: `cohort study run SPEC.toml --out DIR`")));
  if (spec.is_noisy_quadratic())
    fail(ErrorCode::kBadInput, name_settings("--study "), folder, ": the noisy quadratic has no model that `train` could train");
  if (spec.train_samples > 0)
    fail(ErrorCode::kBadInput, name_settings("--study "), folder, ": made with the first ", spec.train_samples,
         name_settings(" samples of its data, which `train` can not do; leave --study out"));
  for (const BatchSpec& batch : spec.batches)
    for (const study::Metaparameter& parameter : batch.space)
      if (parameter.name == "average_decay")
        fail(ErrorCode::kBadInput, name_settings("--study "), folder,
             name_settings(": its trials were evaluated with averages of their weights, which `train` does not keep; leave --study out"));
  return spec;
}

void check_asked(const Config& config, const Layout& layout) {
  if (config.study.empty())
    fail(ErrorCode::kBadInput,
         name_settings("--global-batch auto needs --study DIR: the study that knows how many steps each batch size takes"));
  if (config.resume)
    fail(ErrorCode::kBadInput, name_settings("--study with --resume: go on with the numbers that were chosen, `cohort train "),
         config.run.empty() ? "RUN" : config.run, "/config.toml --resume`");
  if (config.global_batch == 0 && layout.is_model_parallel())
    fail(ErrorCode::kBadInput, name_settings("--global-batch auto with --layout "), config.layout,
         name_settings(": a study has step times of data-parallel workers; give --global-batch a number"));
}

}  // namespace

AutoBatch resolve_auto_batch(const Config& config, const std::function<bool(const std::string&)>& was_given, const Layout& layout) {
  check_asked(config, layout);
  const std::string& folder = config.study;
  const int num_workers = layout.num_ranks();
  const StudySpec spec = read_study_spec(folder);
  Settings settings(config, was_given);
  require_workload(spec, settings);

  const Curve curve = read_curve(folder, num_workers);
  int64_t batch_size = config.global_batch;
  std::string sentence;
  if (batch_size == 0) {
    const std::vector<WorthCell> cells = cells_for(curve, folder, num_workers);
    batch_size = cells.front().batch_size;
    sentence = why(cells, curve.goal);
    if (!curve.flat.empty()) sentence += "; " + curve.flat;
  }
  const StepsToResult& row = row_of(curve, folder, batch_size);
  if (sentence.empty())
    sentence = concat("batch size ", batch_size, ": ", with_commas(*row.steps), " steps to ", curve.goal, " in the study");
  const auto batch =
      std::find_if(spec.batches.begin(), spec.batches.end(), [&](const BatchSpec& each) { return each.batch_size == batch_size; });
  if (batch == spec.batches.end())
    fail(ErrorCode::kBadInput, folder, ": steps_curve.csv has batch size ", batch_size,
         ", study.toml has not; make the report again: `cohort study report ", folder, "`");

  settings.set("global-batch", std::to_string(batch_size));
  take_metaparameters(spec, trial_schedule(spec, parameters_of_trial(spec, *batch, row.trial_id), batch->train_steps), settings);
  take_length(*batch, *row.steps, curve.goal, settings);
  settings.take("threads", int64_t{1});
  settings.take("seed", static_cast<int64_t>(seed_of_trial(spec, row.trial_id)));  // The trial once more, but for rounding.
  const int64_t per_worker = (batch_size + num_workers - 1) / num_workers;
  if (spec.max_microbatch > 0 && layout.accumulate == 0 && !layout.is_model_parallel())
    settings.take("accumulate", (per_worker + spec.max_microbatch - 1) / spec.max_microbatch);
  return {settings.taken(), concat(sentence, "; hyperparameters of trial ", row.trial_id, ": learning rate ", settings.taken().lr)};
}

Config workload_of_study(const Config& config, const std::function<bool(const std::string&)>& was_given) {
  check_asked(config, Layout());
  Settings settings(config, was_given);
  const StudySpec spec = read_study_spec(config.study);
  require_workload(spec, settings);
  settings.take("label-smoothing", most_label_smoothing(spec));
  if (most_label_smoothing(spec) > 0) settings.take("label-smoothing-over", spec.label_smoothing_over);
  settings.take("threads", int64_t{1});  // As step times of a study are measured, and `train --study` trains.
  return settings.taken();
}

}  // namespace cohort

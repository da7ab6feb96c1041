// Which batch size to train with: the one that a study recommends (resolve_auto_batch(): the fewest seconds to its goal, with the
// hyperparameters of that trial), and the largest that fits into memory (find_batch(), below).
#include "cohort/tune/auto_batch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/shared_text.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/job/job.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/run/train_job.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/goal_curve.h"
#include "cohort/study/spec/spec.h"
#include "cohort/train/train_result.h"
#include "cohort/trials/trial_step.h"
#include "cohort/world/stop.h"
#include "cohort/world/supervisor.h"

namespace cohort {
namespace {

using study::BatchSpec;
using study::StepsToResult;
using study::StudySpec;
using study::WorthCell;

/// The user's configuration; settings that were not given are taken from the study.
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
  /// Sets a value that the curve was measured with; a different given value is refused.
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

/// The path of a required file; the error names the command that makes it.
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
  std::string flat;               ///< A sentence about the flat point.
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
  fail(ErrorCode::kBadInput, name_settings("--study "), folder, ": batch size ", batch_size, " is not among those that reached ",
       curve.goal, " there (", reached.empty() ? "none did" : join(reached, " "), "); take one of them, or auto");
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

/// The largest label smoothing of any trial.
double most_label_smoothing(const StudySpec& spec) {
  double most = 0;
  for (const study::BatchSpec& batch : spec.batches)
    for (const study::Hyperparameter& parameter : batch.space) {
      if (parameter.name != "label_smoothing") continue;
      most = std::max(most, parameter.maximum);
      for (const double value : parameter.values) most = std::max(most, value);
    }
  return most;
}

void take_hyperparameters(const StudySpec& spec, const TrialSchedule& trial, Settings& settings) {
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

/// Sets goal, budget and evaluations unless they were given.
void take_length(const BatchSpec& batch, int64_t steps, const std::string& goal, Settings& settings) {
  bool goal_is_known = true;
  try {
    parse_goal(goal);
  } catch (const Error&) {
    goal_is_known = false;  // A goal that `train` does not measure, such as a precision: the number of steps ends the run.
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
         name_settings(" samples of its data, which `train` cannot do; leave --study out"));
  for (const BatchSpec& batch : spec.batches)
    for (const study::Hyperparameter& parameter : batch.space)
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
  take_hyperparameters(spec, trial_schedule(spec, parameters_of_trial(spec, *batch, row.trial_id), batch->train_steps), settings);
  take_length(*batch, *row.steps, curve.goal, settings);
  settings.take("threads", int64_t{1});
  settings.take("seed", static_cast<int64_t>(seed_of_trial(spec, row.trial_id)));  // The seed of the trial.
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
  settings.take("threads", int64_t{1});  // The number of threads of measured step times and of `train --study`.
  return settings.taken();
}

// The largest micro-batch that fits, and the smallest that keeps a worker busy.
//
//   1. 1, 2, 4, ... samples train a few steps, short ones for kTrySeconds, each size in a child process, until one does not fit, the
//      training samples end, or a step would take longer than kMostStepSeconds.
//   2. Bisection between the largest that fits and the least that does not, to within a 32nd.
//   3. Saturated is the least size with 95 % of the highest throughput.
//
// The child runs the training itself (run/train_job.h) without evaluation and report. Its tensors are limited by --memory-limit, otherwise
// to 90 % of the free memory less what smaller tries needed besides tensors (libraries, prefetched batches), extrapolated. Memory that the
// limit does not count may end in an out-of-memory kill: the child asks to be killed first (oom_score_adj), and the kernel's count of such
// kills tells it from other signals. Cost: log2(largest) + 5 trials.

namespace {

constexpr double kMostStepSeconds = 20, kFewStepsFrom = 4;  // Steps longer than kFewStepsFrom are run twice only.
constexpr int kLeastSteps = 4, kMostSteps = 40;
constexpr double kTrySeconds = 0.25;  // Four steps of a millisecond would be too short a sample.
constexpr double kFreePart = 0.9;
constexpr int64_t kFarSmaller = 16;  // Factor to the largest that fits; at smaller sizes a page is as large as a sample.

Config trial_config(const Config& config, int64_t micro_batch, int steps, const std::string& run) {
  Config trial = config;
  trial.layout = "single";
  trial.workers = 0;
  trial.run = run;
  trial.global_batch = micro_batch;
  trial.steps = steps, trial.epochs = 0;
  trial.lr = 1e-9;  // Keeps the weights: the given rate may diverge at one sample.
  trial.checkpoint_every = -1;
  trial.json = false, trial.quiet = true;
  return trial;
}

/// Runs in the child; returns the answer for the parent.
Json train_some_steps(const Config& trial, const DataSet& data, int64_t limit_bytes) {
  try {
    limit_memory(limit_bytes);
    const TrainResult result = train(resolve(trial, 0), data, World{}, {.reports = false});
    return {{"seconds", result.step_seconds}, {"tensors", peak_counted_memory_bytes()}, {"process", peak_memory_bytes()}};
  } catch (const Error& error) {
    return {{"code", static_cast<int>(error.code())}, {"error", error.what()}};
  } catch (const std::bad_alloc&) {
    return {{"code", static_cast<int>(ErrorCode::kEnvironment)}, {"error", "the C library had no memory to give"}};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool is_memory = text.find("not enough memory") != std::string::npos;
    return {{"code", static_cast<int>(is_memory ? ErrorCode::kEnvironment : ErrorCode::kFailed)},
            {"error", is_memory ? std::string("LibTorch's allocator had no memory to give") : text.substr(0, text.find('\n'))}};
  }
}

TriedBatch try_batch(const Config& config, const DataSet& data, int64_t micro_batch, int steps, int64_t limit_bytes) {
  const TemporaryFolder folder("cohort-batch");
  const SharedText answer;
  const Config trial = trial_config(config, micro_batch, steps, folder.path() + "/run");
  const int64_t kills_before = num_oom_kills();
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) fail(ErrorCode::kEnvironment, "find-batch: fork failed: no process to try ", micro_batch, " samples in");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    restore_default_stop_signals();
    std::ofstream("/proc/self/oom_score_adj") << 1000;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);  // Warnings would repeat for each size.
    ::dup2(nowhere, STDERR_FILENO);
    int code = 0;
    try {
      answer.write(train_some_steps(trial, data, limit_bytes).dump());
    } catch (const std::exception&) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  TriedBatch tried{.micro_batch = micro_batch};
  const std::string text = answer.read();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    tried.why = num_oom_kills() > kills_before ? "the kernel killed it: out of memory" : "it was killed (SIGKILL)";
    return tried;
  }
  if (WIFSIGNALED(status) && std::ranges::count(stop_signals(), WTERMSIG(status)) > 0) {
    tried.why = "stopped";
    return tried;
  }
  if (WIFSIGNALED(status) || text.empty())
    fail(ErrorCode::kFailed, "find-batch: the training with ", micro_batch, micro_batch == 1 ? " sample" : " samples",
         WIFSIGNALED(status) ? concat(" ended by signal ", WTERMSIG(status)) : std::string(" ended without an answer"));
  const Json found = Json::parse(text);
  if (found.contains("error")) {
    const auto code = static_cast<ErrorCode>(found["code"].get<int>());
    if (code != ErrorCode::kEnvironment) throw Error(code, found["error"].get<std::string>());
    tried.why = found["error"].get<std::string>();
    return tried;
  }
  tried.fits = true;
  tried.step_seconds = found["seconds"].get<double>();
  tried.peak_tensor_bytes = found["tensors"].get<int64_t>();
  tried.peak_process_bytes = found["process"].get<int64_t>();
  return tried;
}

/// Resident bytes of a try besides its tensors and the memory of this process: those of the least that fits, plus the largest bytes per
/// sample of any larger try, because the number of prefetched batches varies from run to run.
int64_t bytes_besides_tensors(const std::vector<TriedBatch>& tried, int64_t micro_batch) {
  const auto besides = [](const TriedBatch& one) {
    return std::max(0.0, static_cast<double>(one.peak_process_bytes - one.peak_tensor_bytes - peak_memory_bytes()));
  };
  const TriedBatch *least = nullptr, *largest = nullptr;
  for (const TriedBatch& one : tried) {
    if (!one.fits) continue;
    if (!least || one.micro_batch < least->micro_batch) least = &one;
    if (!largest || one.micro_batch > largest->micro_batch) largest = &one;
  }
  if (!largest) return 0;
  double a_sample = 0;
  for (const TriedBatch& one : tried) {
    if (!one.fits || one.micro_batch <= least->micro_batch || one.micro_batch < largest->micro_batch / kFarSmaller) continue;
    a_sample = std::max(a_sample, (besides(one) - besides(*least)) / static_cast<double>(one.micro_batch - least->micro_batch));
  }
  return static_cast<int64_t>(besides(*least) + a_sample * static_cast<double>(micro_batch - least->micro_batch));
}

/// Number of steps to run, given the expected seconds of one; 0: unknown.
int num_steps(double expected_seconds) {
  if (expected_seconds > kFewStepsFrom) return 2;
  if (expected_seconds <= 0) return kLeastSteps;
  return static_cast<int>(std::clamp(kTrySeconds / expected_seconds, double{kLeastSteps}, double{kMostSteps}));
}

}  // namespace

FoundBatch find_batch(const Config& config, const DataSet& data, const std::function<void(const TriedBatch&)>& show,
                      const std::function<bool()>& stop) {
  FoundBatch out{.limit_is_given = config.memory_limit > 0};
  out.limit_bytes =
      out.limit_is_given ? config.memory_limit : static_cast<int64_t>(kFreePart * static_cast<double>(available_memory_bytes()));
  int64_t least_that_fails = 0;
  double a_sample = 0;  // Seconds per sample at the largest size so far.
  const auto attempt = [&](int64_t micro_batch) {
    const int64_t besides = out.limit_is_given ? 0 : bytes_besides_tensors(out.tried, micro_batch);
    const TriedBatch tried =
        besides < out.limit_bytes
            ? try_batch(config, data, micro_batch, num_steps(a_sample * static_cast<double>(micro_batch)), out.limit_bytes - besides)
            : TriedBatch{.micro_batch = micro_batch,
                         .why = concat("batches that are read ahead and libraries alone would take ", human_bytes(besides), " of ",
                                       human_bytes(out.limit_bytes))};
    if (stop()) return false;
    show(tried);
    out.tried.push_back(tried);
    if (tried.fits) out.largest = micro_batch, a_sample = tried.step_seconds / static_cast<double>(micro_batch);
    else least_that_fails = micro_batch;
    return true;
  };
  const int64_t most = data.train->num_samples();
  for (int64_t size = 1; least_that_fails == 0; size = std::min(2 * size, most)) {
    if (!attempt(size)) {
      out.end = FoundBatch::End::kStopped;
      break;
    }
    if (least_that_fails == 1)
      fail(ErrorCode::kInfeasible, "find-batch: not even one sample fits: ", out.tried.back().why,
           name_settings("; a smaller model, --precision bf16, a shorter --context, a smaller --image-size, or several workers (tp, pp, "
                         "zero=3: cohort plan without --find-batch)"));
    if (least_that_fails > 0) break;
    out.end = size == most ? FoundBatch::End::kData : FoundBatch::End::kTime;
    if (size == most || 2 * a_sample * static_cast<double>(size) > kMostStepSeconds) break;
  }
  if (least_that_fails > 0) out.end = FoundBatch::End::kMemory;
  while (least_that_fails > 0 && least_that_fails - out.largest > std::max<int64_t>(1, out.largest / 32)) {
    if (!attempt(out.largest + (least_that_fails - out.largest) / 2)) {
      out.end = FoundBatch::End::kStopped;
      break;
    }
  }
  std::sort(out.tried.begin(), out.tried.end(), [](const TriedBatch& a, const TriedBatch& b) { return a.micro_batch < b.micro_batch; });
  const auto rate = [](const TriedBatch& one) { return one.fits ? static_cast<double>(one.micro_batch) / one.step_seconds : 0.0; };
  double best = 0;
  for (const TriedBatch& one : out.tried) best = std::max(best, rate(one));
  for (const TriedBatch& one : out.tried)
    if (out.saturating == 0 && one.fits && rate(one) >= kSaturated * best) out.saturating = one.micro_batch;
  return out;
}

}  // namespace cohort

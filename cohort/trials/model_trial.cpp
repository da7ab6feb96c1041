// Runs a trial. (1) Build the model from the order's seed and adopt its weights. (2) Resume from the snapshot, where there is one; its
// measurements are reported again. (3) Until the budget: compute the gradient (trial_step.h), check the loss before the update, update, and
// at the steps of the evaluation grid evaluate and ask the watch for the step bound.
//
// The test split is evaluated only where loss, error or precision is better than ever before in the trial: the best value within any budget
// is at one of these evaluations.
//
// Teams. Every rank has the same summed loss and evaluation sums, so all decide alike; rank 0 broadcasts what it alone knows (the watch's
// answer, the snapshot), one small exchange per evaluation. A step costs one all-reduce.

#include "cohort/trials/model_trial.h"
#include "cohort/base/clock.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/trials/trial_step.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
using study::Measurement;
using study::TrialOrder;
using study::TrialOutcome;
using study::TrialStatus;
using study::TrialWatch;

/// The settings that determine the results of a trial; the budget only where the schedule depends on it.
std::string describe_trial(const study::StudySpec& spec, const TrialOrder& order, const TrialSchedule& schedule) {
  std::ostringstream out;
  out << std::setprecision(17) << spec.data << " context=" << spec.context << " val_samples=" << spec.val_samples
      << " train_samples=" << spec.train_samples << " model=" << spec.model << " optimizer=" << spec.optimizer
      << " batch=" << order.batch_size << " id=" << order.id << " seed=" << order.seed << " batches=run-on ratio=" << spec.evaluation_ratio
      << " evaluate_train=" << spec.evaluate_train << " max_microbatch=" << spec.max_microbatch
      << " weight_decay=" << schedule.rule.weight_decay << " decay=" << schedule.learning_rate.decay_steps;
  if (spec.image_size > 0) out << " image_size=" << spec.image_size;
  if (spec.evaluate_test) out << " evaluate_test=1";
  if (schedule.label_smoothing_over != "all") out << " label_smoothing_over=" << schedule.label_smoothing_over;
  for (const auto& [name, value] : order.parameters) out << ' ' << name << '=' << value;
  return out.str();
}

bool is_better_than_all(const Measurement& measurement, const std::vector<Measurement>& before) {
  const auto is_best = [&](study::Metric metric) {
    const double sign = higher_is_better(metric) ? -1 : 1;
    return !std::isnan(measurement.values[metric]) && std::none_of(before.begin(), before.end(), [&](const Measurement& one) {
      return sign * one.values[metric] <= sign * measurement.values[metric];
    });
  };
  return is_best(study::kValLoss) || is_best(study::kValError) || is_best(study::kValPrecision);
}

class ModelRunner : public study::TrialRunner {
 public:
  ModelRunner(const study::StudySpec& spec, std::shared_ptr<const TrialData> data, const Group& team, ModelRunnerOptions options)
      : spec_(spec),
        data_(std::move(data)),
        team_(team),
        options_(std::move(options)),
        step_(*data_, team_, {.max_microbatch = spec.max_microbatch, .use_dense_chain = options_.use_dense_chain}) {
    keep_freed_memory();
    build_trial_model(spec_, data_->train.shape(), 0);  // Reports errors of the model now.
  }

  TrialOutcome run(const TrialOrder& order, const TrialWatch& watch) override;
  Cost measure(int64_t batch_size) override;

 private:
  /// The state of one call of run().
  struct Running {
    const TrialOrder& order;
    const TrialWatch& watch;
    std::string description;
    TrialProgress progress;
    std::optional<TrialOutcome> ended;
    double seconds_before = 0;
    Clock::time_point start = Clock::now(), last_snapshot = start;
  };
  void begin(const TrialSchedule& schedule, int64_t batch_size, uint64_t seed);
  void restore(Running& running);
  void evaluate_split(Measurement& measurement, study::Metric loss, const TrialSamples& samples, int64_t num_samples);
  Measurement measure_model(int64_t step);
  void measure_test(Measurement& measurement);
  void report_measurements(Running& running, size_t first);
  void evaluate_at(Running& running, int64_t step);
  void train_step(Running& running);
  void save(Running& running);
  int64_t from_first_rank(int64_t value);
  bool is_first() const { return team_.rank() == 0; }

  const study::StudySpec spec_;
  std::shared_ptr<const TrialData> data_;
  Group team_;
  ModelRunnerOptions options_;
  TrialStep step_;
  std::unique_ptr<DenseChain> evaluation_chain_;  // A second chain, as each keeps memory for one number of samples.
};

void ModelRunner::begin(const TrialSchedule& schedule, int64_t batch_size, uint64_t seed) {
  evaluation_chain_.reset();
  step_.begin(build_trial_model(spec_, data_->train.shape(), seed), schedule, batch_size, seed);
  if (step_.uses_dense_chain()) evaluation_chain_ = DenseChain::make(step_.model(), data_->train.shape(), step_.weights());
}

/// Rank 0's value on every rank.
int64_t ModelRunner::from_first_rank(int64_t value) {
  if (team_.size() == 1) return value;
  const at::Tensor cell = at::empty({1}, at::kLong);
  *cell.mutable_data_ptr<int64_t>() = value;
  team_.broadcast(cell, 0, "what the first rank says of a trial");
  return *cell.const_data_ptr<int64_t>();
}

/// Rank 0 reads the snapshot and broadcasts it, because the others may have another file system.
void ModelRunner::restore(Running& running) {
  TrialProgress& progress = running.progress;
  TrialWeights& weights = step_.weights();
  const bool found = is_first() && !running.order.snapshot.empty() &&
                     load_trial_snapshot(running.order.snapshot, running.description, progress, weights, step_.buffers());
  if (from_first_rank(found) == 0 || team_.size() == 1) return;
  progress.step = from_first_rank(progress.step);
  progress.measurements.resize(static_cast<size_t>(from_first_rank(std::ssize(progress.measurements))));
  if (!progress.measurements.empty()) progress.measurements.back().step = from_first_rank(progress.measurements.back().step);
  team_.broadcast(weights.weights(), 0, "the weights of a trial's snapshot");
  for (const at::Tensor& slot : weights.slots()) team_.broadcast(slot, 0, "the optimizer state of a trial's snapshot");
  for (const NamedTensor& buffer : step_.buffers()) team_.broadcast(buffer.tensor, 0, "the buffers of a trial's snapshot");
  for (TrialWeights::Segment& segment : weights.segments()) segment.num_updates = from_first_rank(segment.num_updates);
}

/// Replaces the model's weights by their average during its lifetime, where an average is kept.
class AverageInPlace {
 public:
  explicit AverageInPlace(TrialWeights& weights) : weights_(weights) { swap(); }
  ~AverageInPlace() { swap(); }
  AverageInPlace(const AverageInPlace&) = delete;
  AverageInPlace& operator=(const AverageInPlace&) = delete;

 private:
  void swap() {
    if (weights_.has_average()) weights_.swap_average();
  }
  TrialWeights& weights_;
};

/// Sets loss, error and precision of one split, which are consecutive metrics.
void ModelRunner::evaluate_split(Measurement& measurement, study::Metric loss, const TrialSamples& samples, int64_t num_samples) {
  const TrialEvaluation found = evaluate_trial(step_.model(), evaluation_chain_.get(), samples, num_samples, team_);
  measurement.values[loss] = found.loss;
  measurement.values[loss + 1] = found.error;
  measurement.values[loss + 2] = found.precision;
}

Measurement ModelRunner::measure_model(int64_t step) {
  Measurement measurement;
  measurement.step = step;
  const int64_t num_validation = data_->validation.num_samples();
  evaluate_split(measurement, study::kValLoss, data_->validation, num_validation);
  if (spec_.evaluate_train)
    evaluate_split(measurement, study::kTrainLoss, data_->train, std::min(num_validation, data_->train.num_samples()));
  return measurement;
}

void ModelRunner::measure_test(Measurement& measurement) {
  evaluate_split(measurement, study::kTestLoss, *data_->test, data_->test->num_samples());
}

/// Reports the measurements from `first` on to the watch, and ends the trial at the bound or at the budget.
void ModelRunner::report_measurements(Running& running, size_t first) {
  int64_t stop_at = -1;
  const std::vector<Measurement>& measurements = running.progress.measurements;
  if (is_first() && running.watch.measured)
    for (size_t i = first; i < measurements.size() && stop_at < 0; ++i)
      if (running.watch.measured(measurements[i]) <= measurements[i].step) stop_at = measurements[i].step;
  stop_at = from_first_rank(stop_at);
  const int64_t last = measurements.empty() ? 0 : measurements.back().step;
  if (stop_at >= 0 && stop_at < running.order.train_steps) running.ended = {TrialStatus::kCensored, stop_at};
  else if (last >= running.order.train_steps) running.ended = {TrialStatus::kComplete, running.order.train_steps};
}

void ModelRunner::evaluate_at(Running& running, int64_t step) {
  const AverageInPlace average(step_.weights());
  Measurement measurement = measure_model(step);
  if (!std::isfinite(measurement.values[study::kValLoss])) {
    running.ended = {TrialStatus::kInfeasible, step};
    return;
  }
  // After a resume only the first rank has the values of earlier measurements.
  if (data_->test && from_first_rank(is_better_than_all(measurement, running.progress.measurements)) != 0) measure_test(measurement);
  running.progress.measurements.push_back(measurement);
  report_measurements(running, running.progress.measurements.size() - 1);
}

void ModelRunner::save(Running& running) {
  running.progress.seconds = running.seconds_before + seconds_since(running.start) * team_.size();
  if (is_first() && !running.order.snapshot.empty())
    save_trial_snapshot(running.order.snapshot, running.description, running.progress, step_.weights(), step_.buffers());
  running.last_snapshot = Clock::now();
}

void ModelRunner::train_step(Running& running) {
  int64_t& done = running.progress.step;
  const TrialStep::Result result = step_.compute(done, options_.stop && options_.stop());
  if (!std::isfinite(result.loss) || result.loss > spec_.diverged_above) {
    running.ended = {TrialStatus::kInfeasible, done};
    return;
  }
  step_.update(done);
  ++done;
  if (result.stop && done < running.order.train_steps) running.ended = {TrialStatus::kIncomplete, done};
}

TrialOutcome ModelRunner::run(const TrialOrder& order, const TrialWatch& watch) {
  const TrialSchedule schedule = trial_schedule(spec_, order.parameters, order.train_steps);
  Running running{.order = order, .watch = watch, .description = describe_trial(spec_, order, schedule)};
  TrialProgress& progress = running.progress;
  begin(schedule, order.batch_size, order.seed);
  restore(running);
  running.seconds_before = progress.seconds;
  const std::vector<int64_t> grid = study::evaluation_steps(spec_.evaluation_ratio, order.train_steps);
  const int64_t last_measured = progress.measurements.empty() ? -1 : progress.measurements.back().step;
  auto next = std::upper_bound(grid.begin(), grid.end(), last_measured);
  if (!progress.measurements.empty()) report_measurements(running, 0);
  while (!running.ended) {
    if (next != grid.end() && *next == progress.step) {
      evaluate_at(running, *next++);
      continue;
    }
    if (progress.step >= order.train_steps) {
      running.ended = {TrialStatus::kComplete, order.train_steps};
      break;
    }
    train_step(running);
    const bool is_due = seconds_since(running.last_snapshot) >= options_.snapshot_seconds;
    if (running.ended ? running.ended->status == TrialStatus::kIncomplete : is_due) save(running);
  }
  running.ended->seconds = seconds_since(running.start);
  running.ended->seconds_before = running.seconds_before;
  return *running.ended;
}

study::TrialRunner::Cost ModelRunner::measure(int64_t batch_size) {
  constexpr int kWarmUp = 3, kFewest = 3, kMost = 200, kEvaluations = 3;
  constexpr double kSeconds = 0.3;
  TrialSchedule schedule = trial_schedule(spec_, {{"learning_rate", 1e-6}}, 1);
  begin(schedule, batch_size, spec_.seed);
  int64_t number = 0;
  const auto step = [&] {
    const auto start = Clock::now();
    step_.compute(number, false);
    step_.update(number++);
    return seconds_since(start);
  };
  double warm = 0;
  for (int i = 0; i < kWarmUp; ++i) warm = step();
  const int64_t count = from_first_rank(std::clamp<int64_t>(static_cast<int64_t>(kSeconds / std::max(1e-9, warm)), kFewest, kMost));
  std::vector<double> steps, evaluations;
  for (int64_t i = 0; i < count; ++i) steps.push_back(step());
  for (int i = 0; i < kEvaluations; ++i) {
    const auto start = Clock::now();
    Measurement measurement = measure_model(0);
    if (data_->test) measure_test(measurement);  // As if each were the best so far, so that the forecast is an upper bound.
    evaluations.push_back(seconds_since(start));
  }
  return {median(steps), median(evaluations)};
}

}  // namespace

std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec, std::shared_ptr<const TrialData> data,
                                                      const Group& team, const ModelRunnerOptions& options) {
  return std::make_unique<ModelRunner>(spec, std::move(data), team, options);
}

std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec, const DataSet& data, const Group& team,
                                                      const ModelRunnerOptions& options) {
  return make_model_runner(spec, std::make_shared<const TrialData>(data, trial_data_options(spec)), team, options);
}

}  // namespace cohort

// The training loop of synchronous ranks. A step (training_step.h) takes this rank's share of the global batch from the loader, which reads
// ahead. The loss and the stop request of each rank travel with the gradients, so all ranks report one loss and stop after the same step
// without a message of their own. Then evaluation and checkpoint follow where they are due. With sync=local:H and diloco:H the steps
// between two exchanges are each worker's own, and all of this is done after exchanges only.
#include "cohort/train/loop.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/data/loader.h"
#include "cohort/data/source/split.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/advice/balance.h"
#include "cohort/train/evaluation_text.h"
#include "cohort/world/stop.h"

namespace cohort {

bool passes_multiple(int64_t from, int64_t to, int64_t every) { return every > 0 && to / every > from / every; }

AfterStep::AfterStep(RunSetup& run, RunSaver& saver, RunReporter& reporter) : run_(run), saver_(saver), reporter_(reporter) {
  result_.steps = saver.first_step();
  // A run that ended with its goal or patience is over; one that ended with its steps may have got more of them.
  if (const std::string reason = saver.reason_to_end(); reason != "steps") result_.reason = reason;
  ends_ = !result_.reason.empty();
}

void AfterStep::finish(int64_t from, const StepResult& step) {
  const int64_t to = step.metrics.step;
  const bool last = to >= run_.total_steps;
  result_.steps = to;
  result_.loss = step.metrics.loss;
  for (int64_t number = from + 1; number < to && step.num_steps == 1; ++number) {
    StepResult before = step;
    before.metrics.step = number;
    before.num_samples = 0;
    reporter_.step(before, false);
  }
  reporter_.step(step, last || step.stop);
  check_folder();
  if (passes_multiple(from, to, run_.config.eval_every) || last) evaluate(to, last);
  reporter_.progress(step.metrics);
  if (goal_is_reached(to)) result_.reason = "goal";
  else if (patience_is_over(to)) result_.reason = "patience";
  else if (last) result_.reason = "steps";
  result_.interrupted = step.stop && result_.reason.empty();
  ends_ = result_.interrupted || !result_.reason.empty();
  if (ends_ || save_is_due(from, to)) saver_.save(to, ends_, reporter_);
}

/// Checks once a second, on the rank that writes there. A run whose folder was moved ends with its next save (run_saver.h), which is due
/// now.
void AfterStep::check_folder() {
  if (!run_.watched || steady_seconds() < next_check_seconds_) return;
  next_check_seconds_ = steady_seconds() + 1;
  if (!run_.watched->moved_to()) return;
  next_check_seconds_ = std::numeric_limits<double>::infinity();
  log_warning(concat("the run's folder ", run_.config.run, " was moved or removed; the training ends"));
  request_stop();
}

void AfterStep::evaluate_at_end() {
  if (result_.interrupted) return;
  if (result_.reason.empty()) result_.reason = "steps";  // All were made before the resume.
  if (evaluated_step_ < 0) evaluate(result_.steps, true);
  if (!run_.options.reports || !run_.data.test || run_.config.test_samples == 0) return;
  const std::shared_ptr<const DataSource> test = first_samples(run_.data.test, run_.config.test_samples);
  const Evaluation evaluation = evaluated(*test);
  result_.test_loss = evaluation.loss;
  result_.test_error = evaluation.error;
  result_.test_precision = evaluation.precision;
  result_.test_metrics = evaluation.metrics;
  result_.test_samples = test->num_samples();
}

Evaluation AfterStep::evaluated(const DataSource& source) {
  EvaluationOptions options = run_.evaluation_options();
  const DataShape& shape = run_.data.train->shape();
  options.with_confusion = shape.kind == DataShape::Kind::kImage && !shape.has_numbers() && shape.num_classes <= 100;
  options.num_mistakes = &source == run_.data.validation.get() ? num_mistakes_of(shape) : 0;
  return cohort::evaluate(*run_.model, source, run_.group, options);
}

void AfterStep::evaluate(int64_t step, bool last) {
  if (!run_.options.reports) return;
  const Evaluation evaluation = evaluated(*run_.data.validation);
  evaluated_step_ = step;
  result_.val_loss = evaluation.loss;
  result_.val_error = evaluation.error;
  result_.val_precision = evaluation.precision;
  result_.metrics = evaluation.metrics;
  reporter_.evaluation(step, evaluation);
  // All ranks have the same sums, so all of them end here, and the weights of this step are not saved.
  run_.step->check_finite("the validation loss", evaluation.loss, std::max<int64_t>(1, step) - 1);
  is_better_ = saver_.evaluated({step, evaluation.loss, evaluation.error, evaluation.precision});
  if (!last) reporter_.note_evaluation();
}

bool AfterStep::save_is_due(int64_t from, int64_t to) const {
  const int64_t every = run_.config.checkpoint_every;
  if (run_.config.patience > 0 && evaluated_step_ == to && is_better_) return true;  // The best one.
  return every == 0 ? evaluated_step_ == to : passes_multiple(from, to, every);
}

bool AfterStep::patience_is_over(int64_t step) const {
  return run_.config.patience > 0 && evaluated_step_ == step && !is_better_ && saver_.best().evaluations_since() >= run_.config.patience;
}

bool AfterStep::goal_is_reached(int64_t step) const {
  if (!run_.job.goal || evaluated_step_ != step) return false;
  std::map<std::string, double> metrics = result_.metrics;
  metrics.insert(
      {{"val_error", result_.val_error}, {"val_loss", result_.val_loss}, {"val_precision", result_.val_precision}, {"loss", result_.loss}});
  return run_.job.goal->reached(metrics);
}

namespace {

class Loop {
 public:
  Loop(RunSetup& run, RunSaver& saver, RunReporter& reporter)
      : run_(run), saver_(saver), reporter_(reporter), after_(run, saver, reporter) {
    const int64_t pieces = std::max(1, run.config.accumulate);
    if (run.world.size > 1 && run.job.shares.automatic)
      balance_ = std::make_unique<Balance>(run.job.shares.of(run.world.size),
                                           std::max<int64_t>(1, run.config.global_batch / pieces / run.model->sample_granularity()));
  }
  TrainResult train();

 private:
  void train_step(Loader& loader, int64_t number);
  void inject(int64_t number) const;
  void rebalance(Loader& loader, int64_t number, const StepRecord& metrics, int64_t num_samples);

  RunSetup& run_;
  RunSaver& saver_;
  RunReporter& reporter_;
  AfterStep after_;
  std::unique_ptr<Balance> balance_;  // Null for constant shares.
};

void Loop::inject(int64_t number) const {
  if (number == run_.injection.kill_step) ::raise(SIGKILL);
  if (number == saver_.first_step() && run_.injection.pause_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(run_.injection.pause_seconds));
}

/// Gives faster ranks more samples, from the first step that no loader can have read yet.
void Loop::rebalance(Loader& loader, int64_t number, const StepRecord& metrics, int64_t num_samples) {
  if (!balance_) return;
  balance_->add_step(metrics.compute_seconds, num_samples);
  if ((number + 1) % Balance::kStepsOfRound != 0) return;
  if (!balance_->update(gather_numbers(run_.group, balance_->seconds_per_sample(), "the ranks' speeds"))) return;
  const int64_t from = loader.first_free_step();
  if (from >= run_.total_steps) return;
  loader.set_weights(from, balance_->weights());
  reporter_.shares(from + 1, balance_->weights());
}

void Loop::train_step(Loader& loader, int64_t number) {
  inject(number);
  LoadedBatch batch = loader.next();
  const StepResult step = run_.step->run(number, batch);
  const int64_t done = number + 1;
  if (run_.status) run_.status[run_.world.rank].last_step = done;
  // With local steps everything else is done after exchanges.
  if (step.num_steps == 0) return loader.recycle(std::move(batch.batch));
  rebalance(loader, number, step.metrics, step.num_samples);
  loader.recycle(std::move(batch.batch));
  after_.finish(number, step);
}

TrainResult Loop::train() {
  reporter_.start();
  const int64_t first = saver_.first_step();
  if (run_.options.keep_first) saver_.save(first, /*is_last=*/false, reporter_);
  if (first < run_.total_steps && !after_.ends()) {
    Loader loader(run_.data.train, run_.loader_options(first));
    for (int64_t number = first; !after_.ends(); ++number) train_step(loader, number);
  }
  after_.evaluate_at_end();
  reporter_.end(after_.result());
  return after_.result();
}

}  // namespace

TrainResult train_synchronously(RunSetup& run, RunSaver& saver, RunReporter& reporter) { return Loop(run, saver, reporter).train(); }

}  // namespace cohort

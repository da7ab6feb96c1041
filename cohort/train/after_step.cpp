#include "cohort/train/after_step.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/data/source/split.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/records/mistake_pictures.h"
#include "cohort/world/stop.h"

namespace cohort {

bool passes_multiple(int64_t from, int64_t to, int64_t every) { return every > 0 && to / every > from / every; }

AfterStep::AfterStep(RunSetup& run, RunSaver& saver, RunReporter& reporter) : run_(run), saver_(saver), reporter_(reporter) {
  result_.steps = saver.first_step();
  // A run that had reached what it was for goes on only for something else.
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
  look_for_folder();
  if (passes_multiple(from, to, run_.config.eval_every) || last) evaluate(to, last);
  reporter_.progress(step.metrics);
  // Where several are true, what was asked for counts first.
  if (goal_is_reached(to)) result_.reason = "goal";
  else if (patience_is_over(to)) result_.reason = "patience";
  else if (last) result_.reason = "steps";
  result_.interrupted = step.stop && result_.reason.empty();
  ends_ = result_.interrupted || !result_.reason.empty();
  if (ends_ || save_is_due(from, to)) saver_.save(to, ends_, reporter_);
}

/// Once a second, on the one who writes there: a run whose folder is elsewhere is ended by its next save (run_saver.h), which comes now.
void AfterStep::look_for_folder() {
  if (!run_.watched || steady_seconds() < next_look_) return;
  next_look_ = steady_seconds() + 1;
  if (!run_.watched->moved_to()) return;
  next_look_ = std::numeric_limits<double>::infinity();
  log_warning(concat("the run's folder ", run_.config.run, " was moved or removed; the training ends"));
  request_stop();
}

void AfterStep::evaluate_at_end() {
  if (result_.interrupted) return;
  if (result_.reason.empty()) result_.reason = "steps";  // They were made before a resume.
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
  // The sums are everybody's, so all ranks end here; what this step made of the weights is not saved.
  run_.step->check_finite("the validation loss", evaluation.loss, std::max<int64_t>(1, step) - 1);
  is_better_ = saver_.evaluated({step, evaluation.loss, evaluation.error, evaluation.precision});
  if (!last) reporter_.note_evaluation();
}

bool AfterStep::save_is_due(int64_t from, int64_t to) const {
  const int64_t every = run_.config.checkpoint_every;
  if (run_.config.patience > 0 && evaluated_step_ == to && is_better_) return true;  // The one to come back to.
  return every == 0 ? evaluated_step_ == to : passes_multiple(from, to, every);
}

bool AfterStep::patience_is_over(int64_t step) const {
  return run_.config.patience > 0 && evaluated_step_ == step && !is_better_ && saver_.best().evaluations_since() >= run_.config.patience;
}

/// By an evaluation of this very step.
bool AfterStep::goal_is_reached(int64_t step) const {
  if (!run_.job.goal || evaluated_step_ != step) return false;
  std::map<std::string, double> metrics = result_.metrics;
  metrics.insert(
      {{"val_error", result_.val_error}, {"val_loss", result_.val_loss}, {"val_precision", result_.val_precision}, {"loss", result_.loss}});
  return run_.job.goal->reached(metrics);
}

}  // namespace cohort

#include "cohort/train/run/after_step.h"

#include <algorithm>

#include "cohort/train/evaluate.h"

namespace cohort {

bool passes_multiple(int64_t from, int64_t to, int64_t every) { return every > 0 && to / every > from / every; }

AfterStep::AfterStep(RunSetup& run, RunSaver& saver, RunReporter& reporter) : run_(run), saver_(saver), reporter_(reporter) {
  result_.steps = saver.first_step();
}

void AfterStep::finish(int64_t from, const StepResult& step) {
  const int64_t to = step.metrics.step;
  const bool last = to >= run_.total_steps;
  result_.steps = to;
  result_.loss = step.metrics.loss;
  result_.interrupted = step.stop && !last;
  for (int64_t number = from + 1; number < to && step.num_steps == 1; ++number) {
    StepResult before = step;
    before.metrics.step = number;
    before.num_samples = 0;
    reporter_.step(before, false);
  }
  reporter_.step(step, last || step.stop);
  if (passes_multiple(from, to, run_.config.eval_every) || last) evaluate(to, last);
  reporter_.progress(step.metrics);
  ends_ = last || step.stop || goal_is_reached(to);
  if (ends_ || save_is_due(from, to)) saver_.save(to, ends_, reporter_);
}

void AfterStep::evaluate_what_is_there() {
  if (evaluated_step_ < 0 && !result_.interrupted) evaluate(result_.steps, true);
}

void AfterStep::evaluate(int64_t step, bool last) {
  if (!run_.options.reports) return;
  EvaluationOptions options = run_.evaluation_options();
  const DataShape& shape = run_.data.train->shape();
  options.with_confusion = shape.kind == DataShape::Kind::kImage && shape.num_classes <= 100;
  const Evaluation evaluation = cohort::evaluate(*run_.model, *run_.data.validation, run_.group, options);
  evaluated_step_ = step;
  result_.val_loss = evaluation.loss;
  result_.val_error = evaluation.error;
  reporter_.evaluation(step, evaluation);
  // The sums are everybody's, so all ranks end here; what this step made of the weights is not saved.
  run_.step->check_finite("the validation loss", evaluation.loss, std::max<int64_t>(1, step) - 1);
  if (!last) reporter_.note_evaluation();
}

bool AfterStep::save_is_due(int64_t from, int64_t to) const {
  const int64_t every = run_.config.checkpoint_every;
  return every == 0 ? evaluated_step_ == to : passes_multiple(from, to, every);
}

/// By an evaluation of this very step.
bool AfterStep::goal_is_reached(int64_t step) const {
  return run_.job.goal && evaluated_step_ == step &&
         run_.job.goal->reached({{"val_error", result_.val_error}, {"val_loss", result_.val_loss}, {"loss", result_.loss}});
}

}  // namespace cohort

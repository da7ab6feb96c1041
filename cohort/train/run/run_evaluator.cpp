#include "cohort/train/run/run_evaluator.h"

#include <algorithm>

#include "cohort/train/evaluate.h"

namespace cohort {

void RunEvaluator::evaluate(int64_t step, bool last, TrainResult& result) {
  if (!run_.options.reports) return;
  EvaluationOptions options = run_.evaluation_options();
  const DataShape& shape = run_.data.train->shape();
  options.with_confusion = shape.kind == DataShape::Kind::kImage && shape.num_classes <= 100;
  const Evaluation evaluation = cohort::evaluate(*run_.model, *run_.data.validation, run_.group, options);
  evaluated_step_ = step;
  result.val_loss = evaluation.loss;
  result.val_error = evaluation.error;
  reporter_.evaluation(step, evaluation);
  // The sums are everybody's, so all ranks end here; what this step made of the weights is not saved.
  run_.step->check_finite("the validation loss", evaluation.loss, std::max<int64_t>(1, step) - 1);
  if (!last) reporter_.note_evaluation();
}

bool RunEvaluator::save_is_due(int64_t step) const {
  const int64_t every = run_.config.checkpoint_every;
  if (every == 0) return evaluated_step_ == step;
  return every > 0 && step % every == 0;
}

bool RunEvaluator::goal_is_reached(int64_t step, const TrainResult& result) const {
  return run_.job.goal && evaluated_step_ == step &&
         run_.job.goal->reached({{"val_error", result.val_error}, {"val_loss", result.val_loss}, {"loss", result.loss}});
}

}  // namespace cohort

#include "cohort/train/step/forward_backward.h"

#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/precision.h"

namespace cohort {

double forward_backward(LayerGraph& model, const SampleRows& rows, const LossRules& rules, const PassOptions& options) {
  const StepContextScope context(rows.context);
  at::Tensor loss;
  {
    const AutocastScope autocast(options.precision, options.device);
    loss = loss_of(model, model.forward(rows.input), rows.target, rows.weight, rules);
  }
  const auto value = loss.item<double>();
  if (options.before_backward) loss = options.before_backward(loss, value);
  loss.backward();
  return value;
}

}  // namespace cohort

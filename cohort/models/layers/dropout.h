#pragma once
// Dropout whose mask does not depend on the layout: it is a pure function of (seed, step, layer id, position of the sample in the global
// batch, element), read from current_step_context().

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "cohort/base/export.h"
#include "cohort/models/graph/step_context.h"

namespace cohort {

class COHORT_API DropoutImpl : public torch::nn::Module {
 public:
  /// `layer_id` must differ between the dropout layers of a model: a running number that the model's factory assigns. Error(kBadInput)
  /// unless 0 <= probability < 1.
  DropoutImpl(double probability, int64_t layer_id);

  /// {samples, ...} -> the same shape: each element is zero with the probability, else divided by (1 - probability). Identity in evaluation
  /// and for probability 0. Outside of a step (no context) the mask comes from torch's generator.
  at::Tensor forward(const at::Tensor& input);

 private:
  double probability_;
  int64_t layer_id_;
};
TORCH_MODULE(Dropout);

/// The factors by which forward() multiplies the elements of `like`: 0 or 1 / (1 - probability), on the CPU in float32.
COHORT_API at::Tensor dropout_factors(const at::Tensor& like, double probability, int64_t layer_id, const StepContext& context);

}  // namespace cohort

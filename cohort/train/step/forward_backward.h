#pragma once
// Forward, loss and backward of some samples of a batch, as every training does for each of its micro-batches:
//
//   1. The step context is set, so that random layers draw for these samples whatever the layout.
//   2. Forward and loss run under autocast. The loss is the mean over the samples times `weight`, their part of the samples of the update,
//      so that the gradients of all micro-batches add up to the gradient of the mean.
//   3. The caller sees the loss and may scale it; then backward() adds to the gradients that are there.
//
// TrainingStep, the workers of async/, trials and verify's batch division use it. These differ:
//   pipelines           PipelineRunner orders the forwards and backwards of micro-batches itself (TrainingStep, session/split_model).
//   trials/dense_chain  The gradient is written out, without autograd.
//   profile_layers      Each layer runs alone, and gradients of inputs and of weights are timed apart.
//   tune/measure_model  Only times passes: reading the loss would add a wait to what it measures.
//   Session             Module and loss are the program's own.
// Whether a loss is finite is checked by the caller: ranks in step know only after the exchange, on all ranks at once.

#include <ATen/core/Tensor.h>

#include <functional>

#include "cohort/job/specs/small_specs.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {

class LayerGraph;

struct SampleRows {
  at::Tensor input, target;
  double weight = 1;
  StepContext context;
};

struct PassOptions {
  Precision precision = Precision::kFp32;
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Called between forward and backward with the loss and its value; returns what backward() starts from. Empty: the loss.
  std::function<at::Tensor(const at::Tensor& loss, double value)> before_backward = {};
};

/// Returns the loss of the samples, weighted. Errors as loss_of() has them.
double forward_backward(LayerGraph& model, const SampleRows& rows, const LossRules& rules, const PassOptions& options = {});

}  // namespace cohort

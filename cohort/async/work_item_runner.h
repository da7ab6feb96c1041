#pragma once
// Computes the loss and gradients of a work item, the work item of an asynchronous worker.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/async/async_mode.h"
#include "cohort/data/images/augment.h"
#include "cohort/data/sampler.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/train/distil/teacher.h"

namespace cohort {

class LayerGraph;

/// One thread. References must outlive it. Equal weights, buffers and work items give equal bits: random numbers depend on (seed, step,
/// position in the global batch), and those of LibTorch's generator on (seed, step, share).
class WorkItemRunner {
 public:
  /// `teacher` adds its distillation loss; may be null.
  WorkItemRunner(const Job& job, const DataSource& source, LayerGraph& model, const TeacherAnswers* teacher);

  /// Does not change the model's weights and buffers. Error(kFailed) for a loss that is not finite; the advice names the learning rate
  /// `rate`.
  WorkResult compute(const WorkItem& item, double rate);

 private:
  const Job& job_;
  const DataSource& source_;
  LayerGraph& model_;
  const TeacherAnswers* teacher_;
  ModelTensors tensors_;
  Sampler sampler_;
  Augmentation augmentation_;
  Batch batch_;
};

}  // namespace cohort

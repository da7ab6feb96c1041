#pragma once
// Forward and backward of a ticket.

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

/// One thread. References must outlive it. The same bits for the same weights, buffers and ticket: random numbers hang on (seed, step,
/// position in the global batch), those of LibTorch's generator on (seed, step, share).
class TicketWork {
 public:
  /// `teacher`: whose scores are a part of the loss, or null.
  TicketWork(const Job& job, const DataSource& source, LayerGraph& model, const TeacherAnswers* teacher);

  /// With the model's weights and buffers as they are, and leaves both so. Error(kFailed) for a loss that is not finite, with `rate` in the
  /// advice.
  TicketResult compute(const Ticket& ticket, double rate);

 private:
  const Job& job_;
  const DataSource& source_;
  LayerGraph& model_;
  const TeacherAnswers* teacher_;
  ServedModel tensors_;
  Sampler sampler_;
  Augmentation augmentation_;
  Batch batch_;
};

}  // namespace cohort

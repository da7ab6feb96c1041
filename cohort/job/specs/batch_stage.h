#pragma once
// What a batch schedule (batch_schedule.h) consists of: for the public headers, which need no more of it. Torch-free.

#include <cstdint>

namespace cohort {

/// Steps of a training with batches of one size.
struct BatchStage {
  int64_t first_step = 0;  ///< From 0.
  int64_t factor = 1;      ///< Multiple of --global-batch, by as many times as many micro-batches.
};

}  // namespace cohort

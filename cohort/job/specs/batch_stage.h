#pragma once
// Torch-free.

#include <cstdint>

namespace cohort {

/// A part of a training with batches of one size.
struct BatchStage {
  int64_t first_step = 0;  ///< Counted from 0: updates made before it.
  int64_t factor = 1;      ///< Times --global-batch, and times as many micro-batches.
};

}  // namespace cohort

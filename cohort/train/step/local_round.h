#pragma once
// What the steps between two exchanges add up to, where workers train by themselves (sync=local:H, diloco:H): no message tells of a single
// one of them, so they are told of together, by the line of the step that the exchange follows.

#include <cstdint>

#include "cohort/record/step_records.h"

namespace cohort {

/// Of one rank; one thread.
class LocalRound {
 public:
  /// Of one step: the mean loss over this worker's samples, and how many it and all workers had.
  void add_loss(double loss, int64_t own_samples, int64_t all_samples);
  double loss_sum() const { return loss_sum_; }  ///< Over this worker's samples.
  int64_t all_samples() const { return all_samples_; }
  /// The same step, when it has ended.
  void add(const StepRecord& step);

  struct Total {
    StepRecord mean;  ///< Of the times of the steps; all else is that of the last one. The loss is the caller's.
    int64_t num_steps = 0, own_samples = 0;
  };
  /// All since the last call.
  Total take();

 private:
  double loss_sum_ = 0;
  int64_t own_samples_ = 0, all_samples_ = 0, num_steps_ = 0;
  StepRecord sum_;
};

}  // namespace cohort

#pragma once
// What a trial's parameters say about its optimizer and learning rate.

#include <cstdint>

#include "cohort/parallel/optimizer/update.h"
#include "cohort/study/spec/spec.h"

namespace cohort {

struct TrialSchedule {
  UpdateRule rule;
  double learning_rate = 0;
  double label_smoothing = 0;
  double end_factor = 0;
  int64_t decay_steps = 0;  ///< 0: constant.
  int64_t warmup_steps = 0;

  /// Of step t (from 0). With w warm-up steps: lr (t + 1) / w while t < w; then lr (1 - (1 - a) (t - w) / T) down to a lr, which stays,
  /// where T is decay_steps and a end_factor (Shallue et al. 2019, section 4: no warm-up there).
  double learning_rate_at(int64_t step) const;
};

/// Names are study::trial_parameters(). decay_fraction is a part of `train_steps`; decay_steps rules where both are given. Error(kBadInput)
/// for values that mean nothing: a learning rate that is not positive, momentum or betas outside of [0, 1), negative numbers, a label
/// smoothing outside of [0, 1].
TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps);

}  // namespace cohort

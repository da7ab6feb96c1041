#pragma once
// What a trial's parameters say about its optimizer and learning rate.

#include <cstdint>

#include "cohort/job/update_rule.h"
#include "cohort/study/spec/spec.h"

namespace cohort {

struct TrialSchedule {
  UpdateRule rule;
  /// Constant, or linear down to a part of the rate, which then stays (Shallue et al. 2019, section 4: no warm-up there). Knows its own
  /// end: at(step, 0).
  LearningRate learning_rate;
  double label_smoothing = 0;
  std::string label_smoothing_over = "all";  ///< As in train.
  double average_decay = 0;                  ///< Of the average of the weights that is evaluated; 0: the weights are.
};

/// Names are study::trial_parameters(). decay_fraction is a part of `train_steps`; decay_steps rules where both are given. Error(kBadInput)
/// for values that mean nothing: a learning rate that is not positive, momentum or betas outside of [0, 1), negative numbers, a label
/// smoothing outside of [0, 1].
TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps);

}  // namespace cohort

#pragma once
// Which metrics a study has values of: not every workload has every one (a noisy quadratic has no error).

#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// Those with a value at any evaluation of any trial.
std::vector<Metric> measured_metrics(const StudyData& study);

/// Whether the study can answer the goal at all; also where nothing was measured yet.
bool may_answer(const StudyData& study, const GoalSpec& goal);

/// Error(kBadInput) "this study does not measure val_error; measured: val_loss" where it can not.
void check_is_measured(const StudyData& study, const GoalSpec& goal);

}  // namespace cohort::study

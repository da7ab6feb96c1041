#pragma once
// What authors of such studies check by eye, each with its evidence and what to do.

#include <string>
#include <vector>

#include "cohort/study/data.h"
#include "cohort/study/metaparameter.h"
#include "cohort/study/steps_to_result.h"

namespace cohort::study {

struct Flag {
  std::string rule;  ///< "bound", "few-trials", "steps-rise", "examples-fall", "budget", "infeasible", "coarse", "not-reached", "censored"
  int64_t batch_size = 0;  ///< 0: of the whole study.
  std::string evidence;    ///< A sentence with the numbers.
  std::string advice;      ///< What to do.
  bool refuses = false;    ///< With this no regime may be named.
  std::string text() const { return evidence + "; " + advice; }
};

/// Rules and limits: docs/algorithms/batch_size_study.md. `steps` is steps_to_result(study, goal).
std::vector<Flag> self_checks(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps);

/// The space widened at the bounds that best trials touch, by one decade (log scales) or half its width (linear); empty where none does.
SearchSpace widened_space(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);

}  // namespace cohort::study

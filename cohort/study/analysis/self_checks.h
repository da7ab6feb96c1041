#pragma once
// Plausibility checks that authors of such studies make by eye, each with its evidence and advice.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {

struct Flag {
  /// "bound", "instability-wall", "few-trials", "few-batch-sizes", "steps-rise", "examples-fall", "budget", "infeasible", "coarse",
  /// "not-reached", "censored".
  std::string rule;
  int64_t batch_size = 0;  ///< The batch size that the flag is about; 0: the whole study.
  std::string evidence;    ///< A sentence with the numbers.
  std::string advice;      ///< What to do about it.
  bool refuses = false;    ///< No regime may be named.
  std::string text() const { return evidence + "; " + advice; }
};

/// Rules and limits: docs/algorithms/batch_size_study.md. `steps` is steps_to_result(study, goal).
std::vector<Flag> self_checks(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps);

/// The checks that need S(B) alone: steps-rise, examples-fall, few-batch-sizes.
std::vector<Flag> check_curve(const std::vector<StepsToResult>& steps);

/// The space widened at the bounds that good trials touch (widened_space.h), by one decade (log scales), half its width (linear) or two
/// values (lists of numbers), within the hyperparameter's valid range; empty where nothing is widened.
SearchSpace widened_space(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);
/// The widened spaces as TOML for a copy of the spec, one [batch.N.search] per batch size; empty where nothing is widened.
std::string widened_search_text(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps);

}  // namespace cohort::study

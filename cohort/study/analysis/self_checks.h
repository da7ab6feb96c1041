#pragma once
// What authors of such studies check by eye, each with its evidence and what to do.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/metaparameter.h"

namespace cohort::study {

struct Flag {
  /// "bound", "instability-wall", "few-trials", "few-batch-sizes", "steps-rise", "examples-fall", "budget", "infeasible", "coarse",
  /// "not-reached", "censored".
  std::string rule;
  int64_t batch_size = 0;  ///< The one to look after; 0: the whole study.
  std::string evidence;    ///< A sentence with the numbers.
  std::string advice;      ///< What to do.
  bool refuses = false;    ///< With this no regime may be named.
  std::string text() const { return evidence + "; " + advice; }
};

/// Rules and limits: docs/algorithms/batch_size_study.md. `steps` is steps_to_result(study, goal).
std::vector<Flag> self_checks(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps);

/// The checks of S(B) alone: steps-rise, examples-fall, few-batch-sizes.
std::vector<Flag> check_curve(const std::vector<StepsToResult>& steps);

/// The space widened at the bounds that good trials touch (widened_space.h), by one decade (log scales), half its width (linear) or two
/// values (lists of numbers), as far as the metaparameter has values there; empty where none does, and where the bound is an instability
/// wall.
SearchSpace widened_space(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);
/// The same as text to put into a copy of the spec, one [batch.N.search] for each batch size; empty where none.
std::string widened_search_text(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps);

}  // namespace cohort::study

#pragma once
// Plans that forecasts cannot tell apart train some steps each: which plans, how, and which wins.

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/tune/auto_layout.h"
#include "cohort/world/world.h"

namespace cohort {

/// A plan with its request.
struct Choice {
  SearchRequest request;
  RankedPlan plan;
};

/// The user's configuration with a plan's layout, and with its batch where there is a goal (null: none).
Config with_plan(const Config& config, const ModelProfile& profile, const RankedPlan& plan, const AutoGoal* goal);
/// The layout as shown to the user.
std::string layout_text(const Choice& one);

/// Those of `choices` (best first) that forecasts cannot tell from the first: at most three, one of each kind.
std::vector<Choice> plans_to_try(const std::vector<Choice>& choices);

/// Median seconds of a step that really runs, in ranks of its own; infinite where it fails. Error(kInterrupted).
double tried_seconds(const Config& config, const DataSet& data);
/// tried_seconds() in the existing ranks, which all call it; `group` holds all of them.
double tried_seconds_together(const Config& config, const DataSet& data, const World& world, Group& group);

/// The first choice with an untried number of workers whose forecast is below all trials; null: none. `choices` are best first, `seconds`
/// are the step times of the tried plans.
const Choice* other_number_of_workers(const std::vector<Choice>& choices, const std::vector<Choice>& tried,
                                      const std::vector<double>& seconds);

struct Winner {
  size_t index = 0;
  std::string sentence;
};
/// `seconds` are the step times of the plans.
Winner winner_of(const std::vector<Choice>& tried, const std::vector<double>& seconds);

// Which plans are tried, and which of those wins.

/// Before: fewer ranks, no recompute, no compression, no accumulation, a round number of pieces, no model parallelism, less ZeRO.
bool is_simpler(const RankedPlan& a, const RankedPlan& b);

/// The plan with a power of two as `accumulate` where that fits and is forecast to take at most a hundredth longer; else `plan`.
RankedPlan with_round_accumulate(const PlanProblem& problem, RankedPlan plan);

/// Indices of at most `most` of `plans` (best first), the first of each kind: degrees, ZeRO, schedule, precision, compression, batch and
/// shares. Of plans of one kind whose forecasts are a hundredth apart the simplest.
std::vector<size_t> different_plans(const std::vector<const RankedPlan*>& plans, size_t most);

/// Index of the simplest plan whose measured cost is at most kNoiseFloor above the least. `costs`: one a plan; infinite: it failed.
size_t winner_of_trials(const std::vector<const RankedPlan*>& plans, const std::vector<double>& costs);

}  // namespace cohort

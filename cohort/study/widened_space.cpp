#include "cohort/study/widened_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "cohort/base/error.h"
#include "cohort/study/rank_correlation.h"
#include "cohort/study/self_checks.h"
#include "cohort/study/spec_text.h"

namespace cohort::study {
namespace {

constexpr double kNearBound = 0.05;     // In units of the search.
constexpr double kNeighbourhood = 0.1;  // The same.
constexpr double kWallShare = 0.8;      // Of neighbours that diverged.
constexpr double kSignificance = 0.05;

bool is_searched(const Metaparameter& parameter) {
  return parameter.type != Metaparameter::Type::kDiscrete && parameter.minimum < parameter.maximum;
}

/// How far a value is from one end, in units of the search.
double distance(const Metaparameter& parameter, bool at_maximum, double value) {
  const double end = at_maximum ? parameter.maximum : parameter.minimum;
  if (parameter.type == Metaparameter::Type::kInteger && value == end) return 0;  // Units of integers are the middles of cells.
  const double unit = unit_of(parameter, value);
  const bool end_is_one = at_maximum != (parameter.scale == Metaparameter::Scale::kReverseLog);
  return end_is_one ? 1 - unit : unit;
}

std::optional<double> value_of(const Trial& trial, const std::string& name) {
  const auto place = trial.parameters.find(name);
  return place == trial.parameters.end() ? std::nullopt : std::optional(place->second);
}

/// Metaparameters that have no values above 1 by nature; some may be 1.
bool stays_below_one(const std::string& name) {
  static const std::set<std::string> names = {"momentum", "beta1", "beta2", "label_smoothing"};
  return names.contains(name);
}
bool stays_at_most_one(const std::string& name) {
  static const std::set<std::string> names = {"decay_fraction", "end_factor", "end_learning_rate_factor"};
  return names.contains(name);
}

/// p of the trend over the trials that count: those far from the end need more steps, or never got there.
double chance_of_trend(const BatchStudy& batch, const GoalSpec& goal, const Metaparameter& parameter, bool at_maximum) {
  std::vector<double> distances, steps;
  for (const size_t index : kept_trials(batch)) {
    const Trial& trial = batch.trials[index];
    const std::optional<double> value = value_of(trial, parameter.name);
    if (!value) continue;
    const std::optional<int64_t> reached = steps_of_trial(trial, goal);
    distances.push_back(distance(parameter, at_maximum, *value));
    steps.push_back(reached ? static_cast<double>(*reached) : std::numeric_limits<double>::infinity());
  }
  return chance_of_rise(distances, steps);
}

void count_neighbours(BoundHit& hit, const BatchStudy& batch, const Metaparameter& parameter, int64_t best_id) {
  const double of_best = distance(parameter, hit.at_maximum, hit.best_value);
  for (const Trial& trial : batch.trials) {
    const std::optional<double> value = value_of(trial, parameter.name);
    if (trial.id == best_id || trial.status == TrialStatus::kIncomplete || !value) continue;
    if (distance(parameter, hit.at_maximum, *value) > std::max(kNeighbourhood, of_best)) continue;
    ++hit.num_neighbours;
    hit.num_infeasible += trial.status == TrialStatus::kInfeasible;
  }
  const bool nearly_all = static_cast<double>(hit.num_infeasible) >= kWallShare * static_cast<double>(hit.num_neighbours);
  hit.is_wall = hit.at_maximum && parameter.name == "learning_rate" && hit.num_neighbours >= 2 && nearly_all;
}

}  // namespace

bool BoundHit::is_evidence() const { return !is_wall && (is_only_one || chance_of_trend < kSignificance); }

std::optional<double> widened_end(const Metaparameter& parameter, bool at_maximum) {
  using Scale = Metaparameter::Scale;
  const double minimum = parameter.minimum, maximum = parameter.maximum;
  double end = 0;
  switch (parameter.scale) {
    case Scale::kLog:
      end = at_maximum ? maximum * 10 : minimum / 10;
      break;
    case Scale::kReverseLog:
      end = at_maximum ? 1 - (1 - maximum) / 10 : 1 - (1 - minimum) * 10;
      break;
    case Scale::kLinear:
      end = at_maximum ? maximum + (maximum - minimum) / 2 : minimum - (maximum - minimum) / 2;
      break;
  }
  // What starts at 0 or above has no negative values; what starts above 0 on a linear scale may have no 0.
  if (minimum >= 0) end = std::max(end, parameter.scale == Scale::kLinear ? minimum / 2 : 0.0);
  if (stays_below_one(parameter.name) && end >= 1) end = (1 + maximum) / 2;
  if (stays_at_most_one(parameter.name)) end = std::min(end, 1.0);
  if (parameter.type == Metaparameter::Type::kInteger) {
    end = at_maximum ? std::ceil(end) : std::floor(end);
    if (parameter.scale == Scale::kLog) end = std::max(end, 1.0);
  }
  if (at_maximum ? end <= maximum : end >= minimum) return std::nullopt;
  return end;
}

std::vector<BoundHit> bounds_touched(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps) {
  std::vector<BoundHit> hits;
  if (!steps.steps) return hits;
  const auto best = std::find_if(batch.trials.begin(), batch.trials.end(), [&](const Trial& trial) { return trial.id == steps.trial_id; });
  if (best == batch.trials.end()) return hits;
  // Choices are searched too, but have no ends.
  const auto num_searched = std::count_if(batch.space.begin(), batch.space.end(), [](const Metaparameter& parameter) {
    return is_searched(parameter) || parameter.values.size() > 1;
  });
  for (size_t i = 0; i < batch.space.size(); ++i) {
    const Metaparameter& parameter = batch.space[i];
    const std::optional<double> value = value_of(*best, parameter.name);
    if (!is_searched(parameter) || !value) continue;
    for (const bool at_maximum : {false, true}) {
      const std::optional<double> widened = widened_end(parameter, at_maximum);
      if (!widened || distance(parameter, at_maximum, *value) >= kNearBound) continue;
      BoundHit hit = {.index = i, .at_maximum = at_maximum, .best_value = *value, .widened = *widened, .is_only_one = num_searched == 1};
      count_neighbours(hit, batch, parameter, steps.trial_id);
      hit.chance_of_trend = chance_of_trend(batch, goal, parameter, at_maximum);
      hits.push_back(hit);
    }
  }
  return hits;
}

SearchSpace widened_space(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps) {
  SearchSpace space = batch.space;
  bool moved = false;
  for (const BoundHit& hit : bounds_touched(batch, goal, steps)) {
    if (hit.is_wall) continue;
    (hit.at_maximum ? space[hit.index].maximum : space[hit.index].minimum) = hit.widened;
    moved = true;
  }
  return moved ? space : SearchSpace{};
}

std::string widened_search_text(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps) {
  std::string text;
  for (size_t i = 0; i < study.batches.size(); ++i) {
    const BatchStudy& batch = study.batches[i];
    const SearchSpace space = widened_space(batch, goal, steps[i]);
    if (space.empty()) continue;
    text += concat("[batch.", batch.batch_size, ".search]\n");
    for (size_t j = 0; j < space.size(); ++j) {
      const Metaparameter &now = space[j], &before = batch.space[j];
      if (now.minimum == before.minimum && now.maximum == before.maximum) continue;
      text += concat(now.name, " = { type = \"", name_of(now.type), "\", scale = \"", name_of(now.scale),
                     "\", min = ", number_text(now.minimum), ", max = ", number_text(now.maximum), " }\n");
    }
  }
  return text;
}

}  // namespace cohort::study

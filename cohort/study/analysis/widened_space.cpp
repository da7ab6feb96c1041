// Bounds of the search space that good trials lie at. An end of a range or list is touched where the best trial lies there; it is evidence
// of an optimum beyond where results get worse with the distance from it (Kendall's rank correlation, p < 0.05). Where no trial reached the
// goal, the trial nearest to it counts, and whether all trials elsewhere diverged.
#include "cohort/study/analysis/widened_space.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {
namespace {

// Distances are in units of the search.
constexpr double kNearBound = 0.05;
constexpr double kNeighbourhood = 0.1;
constexpr double kCrowd = 0.25;
constexpr int64_t kMinElsewhere = 2;  // Diverged trials elsewhere that a crowd needs as evidence.
constexpr double kWallShare = 0.8;    // Share of diverged neighbours that makes a wall.
constexpr double kSignificance = 0.05;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_range(const Hyperparameter& parameter) {
  return parameter.type != Hyperparameter::Type::kDiscrete && parameter.minimum < parameter.maximum;
}

double end_of(const Hyperparameter& parameter, bool at_maximum) {
  if (is_range(parameter)) return at_maximum ? parameter.maximum : parameter.minimum;
  const auto [least, most] = std::minmax_element(parameter.values.begin(), parameter.values.end());
  return at_maximum ? *most : *least;
}

/// Distance of a value from one end, in units of the search; of a list, the share of its values that lie nearer to the end.
double distance(const Hyperparameter& parameter, bool at_maximum, double value) {
  if (!is_range(parameter)) {
    const auto num_nearer = std::count_if(parameter.values.begin(), parameter.values.end(),
                                          [&](double other) { return at_maximum ? other > value : other < value; });
    return static_cast<double>(num_nearer) / static_cast<double>(parameter.values.size());
  }
  if (parameter.type == Hyperparameter::Type::kInteger && value == end_of(parameter, at_maximum))
    return 0;  // The unit of an integer is the middle of its cell.
  const double unit = unit_of(parameter, value);
  const bool end_is_one = at_maximum != (parameter.scale == Hyperparameter::Scale::kReverseLog);
  return end_is_one ? 1 - unit : unit;
}

bool is_near(const Hyperparameter& parameter, bool at_maximum, double value) {
  const double far = distance(parameter, at_maximum, value);
  return is_range(parameter) ? far < kNearBound : far == 0;
}

/// Hyperparameters whose valid range ends at 1, exclusive here and inclusive below.
bool stays_below_one(const std::string& name) {
  static const std::set<std::string> names = {"momentum", "beta1", "beta2", "label_smoothing", "average_decay"};
  return names.contains(name);
}
bool stays_at_most_one(const std::string& name) {
  static const std::set<std::string> names = {"decay_fraction", "end_factor", "end_learning_rate_factor"};
  return names.contains(name);
}
bool is_whole(const std::string& name) { return name == "decay_steps" || name == "warmup_steps"; }

/// Ranks the trials of one batch size, less is better: by steps to the goal; where no trial reached it, by the value nearest to it.
/// Infinite where that is unknown.
class Merits {
 public:
  Merits(const BatchStudy& batch, const GoalSpec& goal, bool is_reached) : batch_(batch) {
    for (const size_t index : counted_trials(batch)) {
      const Trial& trial = batch.trials[index];
      kept_.push_back({&trial, is_reached ? steps_of(trial, goal) : nearest_of(trial, goal.metric)});
      least_ = std::min(least_, kept_.back().merit);
    }
  }

  /// Null where no trial has a merit.
  const Trial* best() const {
    for (const auto& [trial, merit] : kept_)
      if (std::isfinite(merit) && merit == least_) return trial;
    return nullptr;
  }

  /// Whether all trials that are as good as the best lie near the end.
  bool best_are_near(const Hyperparameter& parameter, bool at_maximum) const {
    return std::all_of(kept_.begin(), kept_.end(), [&](const Kept& kept) {
      const std::optional<double> value = find_parameter(kept.trial->parameters, parameter.name);
      return kept.merit > least_ || (value && is_near(parameter, at_maximum, *value));
    });
  }

  /// One-sided p of the trend that trials far from the end are worse.
  double chance_of_trend(const Hyperparameter& parameter, bool at_maximum) const {
    std::vector<double> distances, merits;
    for (const auto& [trial, merit] : kept_) {
      const std::optional<double> value = find_parameter(trial->parameters, parameter.name);
      if (!value) continue;
      distances.push_back(distance(parameter, at_maximum, *value));
      merits.push_back(merit);
    }
    return chance_of_rise(distances, merits);
  }

  /// Whether all trials that count lie in the quarter at the end, those elsewhere diverged, and chance is unlikely. High learning rates are
  /// known to diverge, so that their lower end needs no test.
  bool are_crowded(const Hyperparameter& parameter, bool at_maximum) const {
    int64_t num_inside = 0, num_elsewhere = 0;
    for (const Trial& trial : batch_.trials) {
      const std::optional<double> value = find_parameter(trial.parameters, parameter.name);
      if (trial.status == TrialStatus::kIncomplete || !value) continue;
      const bool is_inside = distance(parameter, at_maximum, *value) < kCrowd;
      if (!is_inside && trial.status != TrialStatus::kInfeasible) return false;
      ++(is_inside ? num_inside : num_elsewhere);
    }
    if (kept_.empty() || num_elsewhere < kMinElsewhere) return false;
    if (parameter.name == "learning_rate") return !at_maximum;
    double chance = 1;  // Probability that all trials that count are drawn from inside.
    for (size_t i = 0; i < kept_.size(); ++i)
      chance *= static_cast<double>(num_inside) - static_cast<double>(i),
          chance /= static_cast<double>(num_inside + num_elsewhere) - static_cast<double>(i);
    return chance < kSignificance;
  }

 private:
  struct Kept {
    const Trial* trial;
    double merit;
  };

  static double steps_of(const Trial& trial, const GoalSpec& goal) {
    const std::optional<int64_t> steps = steps_of_trial(trial, goal);
    return steps ? static_cast<double>(*steps) : kInfinity;
  }
  static double nearest_of(const Trial& trial, Metric metric) {
    double nearest = kInfinity;
    for (const Measurement& measurement : trial.measurements)  // NaN is never less.
      nearest = std::min(nearest, higher_is_better(metric) ? -measurement.values[metric] : measurement.values[metric]);
    return nearest;
  }

  const BatchStudy& batch_;
  std::vector<Kept> kept_;
  double least_ = kInfinity;
};

void count_neighbours(BoundHit& hit, const BatchStudy& batch, const Hyperparameter& parameter) {
  const double of_best = distance(parameter, hit.at_maximum, hit.best_value);
  for (const Trial& trial : batch.trials) {
    const std::optional<double> value = find_parameter(trial.parameters, parameter.name);
    if (trial.id == hit.trial_id || trial.status == TrialStatus::kIncomplete || !value) continue;
    if (distance(parameter, hit.at_maximum, *value) > std::max(kNeighbourhood, of_best)) continue;
    ++hit.num_neighbours;
    hit.num_infeasible += trial.status == TrialStatus::kInfeasible;
  }
  const bool nearly_all = static_cast<double>(hit.num_infeasible) >= kWallShare * static_cast<double>(hit.num_neighbours);
  hit.is_wall = hit.at_maximum && parameter.name == "learning_rate" && hit.num_neighbours >= 2 && nearly_all;
}

/// Why this end is examined; none where it is not.
std::optional<BoundReason> reason_of(const Merits& merits, const Hyperparameter& parameter, bool at_maximum, const StepsToResult& steps) {
  const bool is_lowest_rate = parameter.name == "learning_rate" && !at_maximum;
  if (steps.num_kept == 0 && steps.num_infeasible > 0) return is_lowest_rate ? std::optional(BoundReason::kDiverged) : std::nullopt;
  if (!steps.steps && merits.are_crowded(parameter, at_maximum)) return BoundReason::kFeasible;
  const Trial* best = merits.best();
  const std::optional<double> value = best ? find_parameter(best->parameters, parameter.name) : std::nullopt;
  if (!value || !is_near(parameter, at_maximum, *value)) return std::nullopt;
  if (steps.steps) return BoundReason::kBest;
  // Trials that learned nothing are all equally near to the goal, wherever they lie.
  return merits.best_are_near(parameter, at_maximum) ? std::optional(BoundReason::kNearest) : std::nullopt;
}

/// The end of a list of numbers moved outwards by `num_steps` times the mean distance of its values.
double moved(const Hyperparameter& parameter, bool at_maximum, double num_steps) {
  std::vector<double> values = parameter.values;
  std::sort(values.begin(), values.end());
  const double end = at_maximum ? values.back() : values.front(), direction = at_maximum ? num_steps : -num_steps;
  const auto mean = [&](double span, size_t count) { return direction * span / static_cast<double>(count - 1); };
  if (stays_below_one(parameter.name) && (at_maximum || values.front() >= 0.5)) {  // In log(1 - x).
    if (values.back() >= 1) return end;
    const double value = 1 - (1 - end) * std::exp(mean(std::log1p(-values.back()) - std::log1p(-values.front()), values.size()));
    return std::abs(value) < 1e-12 ? 0 : value;  // A rounding error of 0.
  }
  const auto positive = std::upper_bound(values.begin(), values.end(), 0.0);
  const auto num_positive = static_cast<size_t>(values.end() - positive);
  if (num_positive >= 2 && end > 0 && values.back() >= 10 * *positive)
    return end * std::exp(mean(std::log(values.back() / *positive), num_positive));
  const double value = end + mean(values.back() - values.front(), values.size());
  return values.front() > 0 && value <= 0 ? values.front() * std::exp2(-num_steps) : value;
}

/// Rounds to three digits, near 1 to three digits of 1 - value.
double rounded(double value) {
  const double small = value > 0.5 && value < 1 ? 1 - value : std::abs(value);
  if (small == 0) return value;
  const double scale = std::pow(10.0, 2 - std::floor(std::log10(small)));
  return std::round(value * scale) / scale;
}

}  // namespace

bool BoundHit::is_evidence() const {
  const bool is_about_divergence = reason == BoundReason::kFeasible || reason == BoundReason::kDiverged;
  return !is_wall && (is_about_divergence || is_only_one || chance_of_trend < kSignificance);
}

std::string value_text(double value) {
  if (value > 0.5 && value < 1) {
    char text[64];
    const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(1 - value))), 4, 17);
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    std::string out = text;
    return out.erase(out.find_last_not_of('0') + 1);
  }
  return short_number(value);
}

std::string short_number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, value == std::round(value) && std::abs(value) < 1e15 ? "%.0f" : "%.4g", value);
  return text;
}

bool is_number_list(const Hyperparameter& parameter) {
  if (parameter.type != Hyperparameter::Type::kDiscrete) return false;
  const std::set<double> distinct(parameter.values.begin(), parameter.values.end());
  double index = 0;
  const bool are_indices = std::all_of(parameter.values.begin(), parameter.values.end(), [&](double value) { return value == index++; });
  return distinct.size() >= 3 && !are_indices;
}

std::vector<double> values_beyond(const Hyperparameter& parameter, bool at_maximum) {
  constexpr int kNumValues = 2;
  std::vector<double> values;
  double last = end_of(parameter, at_maximum);
  const double least = last >= 0 ? 0 : -kInfinity;  // A list that starts at 0 or above gets no negative values.
  for (int i = 1; i <= kNumValues; ++i) {
    const double exact = moved(parameter, at_maximum, i);
    double value = is_whole(parameter.name) ? std::round(exact) : rounded(exact);
    if (at_maximum ? value <= last : value >= last) value = exact;  // The values are too close together to be rounded.
    value = std::max(value, least);
    if (stays_at_most_one(parameter.name)) value = std::min(value, 1.0);
    const bool is_beyond = at_maximum ? value > last : value < last;
    if (!is_beyond || (stays_below_one(parameter.name) && value >= 1)) break;
    values.push_back(last = value);
  }
  return values;
}

std::optional<double> widened_end(const Hyperparameter& parameter, bool at_maximum) {
  using Scale = Hyperparameter::Scale;
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
  // A range that starts at 0 or above gets no negative values; a linear one that starts above 0 gets no 0.
  if (minimum >= 0) end = std::max(end, parameter.scale == Scale::kLinear ? minimum / 2 : 0.0);
  if (stays_below_one(parameter.name) && end >= 1) end = (1 + maximum) / 2;
  if (stays_at_most_one(parameter.name)) end = std::min(end, 1.0);
  if (parameter.type == Hyperparameter::Type::kInteger) {
    end = at_maximum ? std::ceil(end) : std::floor(end);
    if (parameter.scale == Scale::kLog) end = std::max(end, 1.0);
  }
  if (at_maximum ? end <= maximum : end >= minimum) return std::nullopt;
  return end;
}

std::vector<BoundHit> bounds_touched(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps) {
  std::vector<BoundHit> hits;
  const Merits merits(batch, goal, steps.steps.has_value());
  // Lists count as searched too, also those without ends.
  const auto num_searched = std::count_if(batch.space.begin(), batch.space.end(), [](const Hyperparameter& parameter) {
    return is_range(parameter) || parameter.values.size() > 1;
  });
  for (size_t i = 0; i < batch.space.size(); ++i) {
    const Hyperparameter& parameter = batch.space[i];
    if (!is_range(parameter) && !is_number_list(parameter)) continue;
    for (const bool at_maximum : {false, true}) {
      const std::optional<BoundReason> reason = reason_of(merits, parameter, at_maximum, steps);
      if (!reason) continue;
      const double end = end_of(parameter, at_maximum);
      BoundHit hit = {
          .index = i, .at_maximum = at_maximum, .reason = *reason, .end = end, .best_value = end, .is_only_one = num_searched == 1};
      if (is_range(parameter)) {
        const std::optional<double> widened = widened_end(parameter, at_maximum);
        if (!widened) continue;
        hit.widened = *widened;
      } else {
        hit.beyond = values_beyond(parameter, at_maximum);
        if (hit.beyond.empty()) continue;
        hit.widened = hit.beyond.back();
      }
      if (const Trial* best = merits.best()) {
        hit.trial_id = best->id;
        hit.best_value = find_parameter(best->parameters, parameter.name).value_or(end);
        hit.chance_of_trend = merits.chance_of_trend(parameter, at_maximum);
      }
      count_neighbours(hit, batch, parameter);
      hits.push_back(std::move(hit));
    }
  }
  return hits;
}

SearchSpace widened_space(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps) {
  SearchSpace space = batch.space;
  bool is_wider = false;
  for (const BoundHit& hit : bounds_touched(batch, goal, steps)) {
    if (hit.is_wall) continue;
    Hyperparameter& parameter = space[hit.index];
    is_wider = true;
    if (hit.beyond.empty()) {
      (hit.at_maximum ? parameter.maximum : parameter.minimum) = hit.widened;
      continue;
    }
    const bool is_falling = parameter.values.front() > parameter.values.back();
    for (const double value : hit.beyond)
      parameter.values.insert(hit.at_maximum != is_falling ? parameter.values.end() : parameter.values.begin(), value);
  }
  return is_wider ? space : SearchSpace{};
}

std::string widened_search_text(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps) {
  std::string text;
  for (size_t i = 0; i < study.batches.size(); ++i) {
    const BatchStudy& batch = study.batches[i];
    const SearchSpace space = widened_space(batch, goal, steps[i]);
    if (space.empty()) continue;
    text += concat("[batch.", batch.batch_size, ".search]\n");
    for (size_t j = 0; j < space.size(); ++j) {
      const Hyperparameter &now = space[j], &before = batch.space[j];
      if (now.minimum == before.minimum && now.maximum == before.maximum && now.values == before.values) continue;
      text += concat(now.name, " = ", to_toml(now), "\n");
    }
  }
  return text;
}

// Kendall's rank correlation. Source: Kendall 1938; variance with ties: Kendall 1970, "Rank Correlation Methods", chapter 4.
namespace {

int sign(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

/// Sums over groups of equal values, of t (t - 1), t (t - 1) (t - 2) and t (t - 1) (2 t + 5).
struct Ties {
  double pairs = 0, triples = 0, variance = 0;
};

Ties ties_of(std::span<const double> values) {
  std::map<double, double> counts;
  for (const double value : values) counts[value] += 1;
  Ties ties;
  for (const auto& [value, t] : counts) {
    ties.pairs += t * (t - 1);
    ties.triples += t * (t - 1) * (t - 2);
    ties.variance += t * (t - 1) * (2 * t + 5);
  }
  return ties;
}

}  // namespace

double chance_of_rise(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 5) return 1;
  double score = 0;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < i; ++j) score += sign(x[i], x[j]) * sign(y[i], y[j]);
  const double n = static_cast<double>(x.size());
  const Ties of_x = ties_of(x), of_y = ties_of(y);
  const double variance = (n * (n - 1) * (2 * n + 5) - of_x.variance - of_y.variance) / 18 + of_x.pairs * of_y.pairs / (2 * n * (n - 1)) +
                          of_x.triples * of_y.triples / (9 * n * (n - 1) * (n - 2));
  if (variance <= 0 || score <= 0) return 1;
  return 0.5 * std::erfc((score - 1) / std::sqrt(2 * variance));  // Continuity correction of 1: the score moves in steps of 2.
}

}  // namespace cohort::study

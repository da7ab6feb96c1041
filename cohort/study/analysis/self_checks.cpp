// Plausibility checks of a study, from its numbers alone. All thresholds are here; docs/algorithms/batch_size_study.md gives the reasons.
#include "cohort/study/analysis/self_checks.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/analysis/widened_space.h"

namespace cohort::study {
namespace {

constexpr double kNoise = 1.05;                         // Smaller ratios are never flagged.
constexpr double kCurveSignificance = 0.05;             // For the whole curve; divided by its number of points.
constexpr int64_t kFewReached = 5, kTooFewReached = 3;  // Trials that reached the goal: flagged, refused.
constexpr int64_t kEnoughBehind = 10;                   // With this many reached or stopped behind the best: neither.
constexpr double kLastOfBudget = 0.75;
constexpr double kMostInfeasible = 0.6;
constexpr int64_t kFewEvaluations = 20;
constexpr double kWideCell = 0.1;
constexpr size_t kFewBatchSizes = 3;

std::string at_batch(int64_t batch_size) { return concat("at batch size ", batch_size); }

/// A point of the curve, with the sorted steps of its trials where these are known.
struct CurvePoint {
  StepsToResult result;
  std::vector<double> trials;

  int64_t batch_size() const { return result.batch_size; }
  double steps() const { return static_cast<double>(*result.steps); }
  double examples() const { return static_cast<double>(result.batch_size) * steps(); }
  /// A lower bound of the steps: the goal was met between the evaluation before and this one.
  double surely_above() const { return trials.empty() ? steps() : static_cast<double>(result.step_before); }
};

/// Compares two points of which `worse` should not be above `better`, in steps or (scaled by batch sizes) in examples.
struct Comparison {
  double ratio = 1;          ///< worse / better.
  double certain_ratio = 1;  ///< A lower bound of the ratio, given the evaluation grid.
  bool has_trials = false;
  bool is_beyond = false;  ///< The worse one lies above the better one's 95 % interval.
  /// Probability, if both searches were equally good, that as many best trials of both come from `better` as beat the best of `worse`.
  double chance = 1;

  bool flags(double tolerance) const { return certain_ratio > tolerance || (ratio > kNoise && (is_beyond || !has_trials)); }
  bool refuses(double tolerance, size_t num_points) const {
    return certain_ratio > tolerance || (ratio > kNoise && chance < kCurveSignificance / static_cast<double>(num_points));
  }
  std::string chance_text() const { return has_trials ? concat(" (by chance: p = ", short_number(chance), ")") : ""; }
};

/// `scale` multiplies the steps of the worse point.
Comparison compare(const CurvePoint& worse, double scale, const CurvePoint& better) {
  const double certain = worse.surely_above() * scale;
  Comparison comparison = {.ratio = worse.steps() * scale / better.steps(), .certain_ratio = certain / better.steps()};
  comparison.has_trials = !worse.trials.empty() && !better.trials.empty();
  if (!comparison.has_trials) return comparison;
  comparison.is_beyond = certain > *better.result.high;
  double of_better = static_cast<double>(better.trials.size()), of_both = of_better + static_cast<double>(worse.trials.size());
  for (const double steps : better.trials)
    if (steps < certain) comparison.chance *= of_better-- / of_both--;
  return comparison;
}

std::vector<Flag> check_steps_rise(const std::vector<CurvePoint>& points) {
  std::vector<Flag> flags;
  const CurvePoint* best = nullptr;
  for (const CurvePoint& point : points) {
    const Comparison comparison = best ? compare(point, 1, *best) : Comparison{};
    if (comparison.flags(kFlatFactor))
      flags.push_back({.rule = "steps-rise",
                       .batch_size = point.batch_size(),
                       .evidence = concat("steps rise from ", short_number(best->steps()), " ", at_batch(best->batch_size()), " to ",
                                          short_number(point.steps()), " at ", point.batch_size(), ", ", short_number(comparison.ratio),
                                          " times", comparison.chance_text()),
                       .advice = concat("a larger batch never needs more steps when it is tuned: search more points, or a wider space, ",
                                        at_batch(point.batch_size())),
                       .refuses = comparison.refuses(kFlatFactor, points.size())});
    if (!best || point.steps() < best->steps()) best = &point;
  }
  return flags;
}

std::vector<Flag> check_examples_fall(const std::vector<CurvePoint>& points) {
  std::vector<Flag> flags;
  const CurvePoint* worst = nullptr;  // The smaller batch size with the most examples so far.
  double strongest = 0;               // The ratio that was flagged for it.
  for (const CurvePoint& point : points) {
    const double scale = worst ? static_cast<double>(worst->batch_size()) / static_cast<double>(point.batch_size()) : 1;
    const Comparison comparison = worst ? compare(*worst, scale, point) : Comparison{};
    if (comparison.flags(kPerfectFactor) && comparison.ratio > strongest) {
      if (strongest > 0) flags.pop_back();  // One flag per batch size, with the strongest evidence.
      strongest = comparison.ratio;
      flags.push_back({.rule = "examples-fall",
                       .batch_size = worst->batch_size(),
                       .evidence = concat("samples to the goal (batch size x steps) fall from ", short_number(worst->examples()), " ",
                                          at_batch(worst->batch_size()), " to ", short_number(point.examples()), " at ", point.batch_size(),
                                          ", ", short_number(comparison.ratio), " times: steps fall by more than the batch size grows",
                                          comparison.chance_text()),
                       .advice = concat("search more points, or a wider space, ", at_batch(worst->batch_size()),
                                        "; give budgets in steps: equal numbers of epochs favour small batches"),
                       .refuses = comparison.refuses(kPerfectFactor, points.size())});
    }
    if (!worst || point.examples() > worst->examples()) worst = &point, strongest = 0;
  }
  return flags;
}

std::vector<Flag> check_points(const std::vector<CurvePoint>& points) {
  std::vector<Flag> flags = check_steps_rise(points);
  for (Flag& flag : check_examples_fall(points)) flags.push_back(std::move(flag));
  if (points.size() < kFewBatchSizes)
    flags.push_back({.rule = "few-batch-sizes",
                     .evidence = concat("only ", points.size(), " batch sizes have steps to the goal"),
                     .advice = concat("regimes need at least ", kFewBatchSizes),
                     .refuses = true});
  return flags;
}

bool has_point(const StepsToResult& result) { return result.steps && *result.steps > 0; }

/// The checks of one batch size.
class BatchChecks {
 public:
  BatchChecks(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps) : batch_(batch), goal_(goal), steps_(steps) {}

  std::vector<Flag> all() {
    const bool can_widen = check_bounds();
    steps_.steps ? check_reached() : check_not_reached(can_widen);
    check_unknown();
    check_infeasible();
    return std::move(flags_);
  }

 private:
  void add(const char* rule, bool refuses, std::string evidence, std::string advice) {
    flags_.push_back(
        {.rule = rule, .batch_size = batch_.batch_size, .evidence = std::move(evidence), .advice = std::move(advice), .refuses = refuses});
  }
  std::string here() const { return at_batch(batch_.batch_size); }

  void check_reached() {
    // Trials that were stopped behind the best are known to be slower. With a censoring margin of 1 few trials reach the goal, however good
    // the search: then its size counts.
    const int64_t num_behind = steps_.num_stopped - steps_.num_unknown;
    if (steps_.num_reached < kFewReached && steps_.num_reached + num_behind < kEnoughBehind)
      add("few-trials", steps_.num_reached < kTooFewReached,
          concat("only ", steps_.num_reached, " of ", steps_.num_kept, " trials ", here(), " reached ", goal_.text(),
                 num_behind > 0 ? concat("; ", num_behind, " more were stopped behind the best, too few to judge") : ""),
          concat("the best of so few is luck: search more points, or a space nearer to the good ones; ", kFewReached, " are the least"));
    const auto budget = static_cast<double>(batch_.train_steps);
    if (budget > 0 && static_cast<double>(*steps_.steps) > kLastOfBudget * budget)
      add("budget", true,
          concat("steps ", here(), ", ", *steps_.steps, ", are within the last quarter of the budget of ", batch_.train_steps),
          concat("slower trials had no chance: raise train_steps to at least ", 2 * *steps_.steps));
    check_grid();
  }

  /// "the lower bound 0.1", "0.1, the smallest of its 6 values".
  static std::string end_text(const Hyperparameter& parameter, const BoundHit& hit) {
    if (hit.beyond.empty()) return concat("the ", hit.at_maximum ? "upper" : "lower", " bound ", value_text(hit.end));
    return concat(value_text(hit.end), ", the ", hit.at_maximum ? "largest" : "smallest", " of its ", parameter.values.size(), " values");
  }

  std::string where_text(const Hyperparameter& parameter, const BoundHit& hit) const {
    const std::string end = end_text(parameter, hit);
    const std::string of_name = hit.beyond.empty() ? concat(end, " of ", parameter.name) : concat(parameter.name, " ", end);
    if (hit.reason == BoundReason::kDiverged)
      return concat("all ", steps_.num_infeasible, " trials ", here(), " diverged, down to ", of_name);
    if (hit.reason == BoundReason::kFeasible)
      return concat("the ", steps_.num_kept, " trials that count ", here(), ", of ", steps_.num_kept + steps_.num_infeasible,
                    ", all lie in the quarter of the space at ", of_name, "; those elsewhere diverged");
    const std::string trial = hit.reason == BoundReason::kBest ? "the best trial " : concat("the trial nearest to ", goal_.text(), " ");
    const std::string has = concat(trial, here(), " (id ", hit.trial_id, ") has ", parameter.name, " ");
    return hit.beyond.empty() ? concat(has, value_text(hit.best_value), ", within 5 % of ", end) : has + end;
  }

  std::string widening_text(const Hyperparameter& parameter, const BoundHit& hit) const {
    const std::string again = concat(" and search ", batch_.batch_size, " again");
    if (hit.beyond.empty()) {
      const double low = hit.at_maximum ? parameter.minimum : hit.widened, high = hit.at_maximum ? hit.widened : parameter.maximum;
      return concat("widen ", parameter.name, " to [", value_text(low), ", ", value_text(high), "]", again);
    }
    std::vector<std::string> values;
    for (const double value : hit.beyond) values.push_back(value_text(value));
    return concat("add ", join(values, " and "), " to the values of ", parameter.name, again);
  }

  void add_bound(const BoundHit& hit) {
    const Hyperparameter& parameter = batch_.space[hit.index];
    const std::string where = where_text(parameter, hit);
    if (hit.is_wall) {
      add("instability-wall", false, concat(where, ", where ", hit.num_infeasible, " of ", hit.num_neighbours, " other trials diverged"),
          "this is where training becomes unstable, not a bound to widen: warm-up or clipping may move it");
      return;
    }
    const std::string rise =
        hit.reason == BoundReason::kBest ? "steps do not clearly rise" : concat(name_of(goal_.metric), " does not clearly get worse");
    const std::string trend =
        hit.is_evidence() ? "" : concat(" (", rise, " away from it, p = ", short_number(hit.chance_of_trend), ": it may not matter)");
    // Without steps the batch size has no point that could mislead the regimes.
    add("bound", hit.is_evidence() && hit.reason == BoundReason::kBest, where + trend, widening_text(parameter, hit));
  }

  void check_grid() {
    if (*steps_.steps == 0) {
      add("coarse", false, concat(goal_.text(), " is met ", here(), " at step 0, before any training"),
          "take a harder goal: this one says nothing of batch sizes");
      return;
    }
    const int64_t num_evaluations = study::num_evaluations(*find_trial(batch_, steps_.trial_id), *steps_.steps);
    const double cell = static_cast<double>(*steps_.steps - steps_.step_before) / static_cast<double>(*steps_.steps);
    if (num_evaluations >= kFewEvaluations && cell <= kWideCell) return;
    add("coarse", false,
        concat("steps ", here(), ", ", *steps_.steps, ", are evaluation ", num_evaluations, " of that trial; the one before was at ",
               steps_.step_before, ": rounding is ", short_number(std::round(100 * cell)), " %"),
        num_evaluations < kFewEvaluations && cell <= kWideCell ? "take a harder goal: with so few steps every trial gets few chances"
                                                               : "evaluate more often (evaluation_ratio), or take a harder goal");
  }

  /// Returns whether a wider space is worth a search.
  bool check_bounds() {
    bool can_widen = false;
    for (const BoundHit& hit : bounds_touched(batch_, goal_, steps_)) {
      add_bound(hit);
      can_widen |= hit.is_evidence();
    }
    return can_widen;
  }

  void check_not_reached(bool can_widen) {
    if (steps_.num_kept == 0) {
      add("not-reached", false, concat("no trial counts ", here(), ": ", steps_.num_infeasible, " diverged"),
          "lower the learning rates of the space");
      return;
    }
    int64_t longest = 0;
    std::optional<double> best;
    for (const size_t index : counted_trials(batch_)) {
      longest = std::max(longest, batch_.trials[index].steps);
      for (const Measurement& measurement : batch_.trials[index].measurements) {
        const double value = measurement.values[goal_.metric];
        if (!std::isnan(value) && (!best || is_better(value, *best, goal_.metric))) best = value;
      }
    }
    const std::string nearest = best ? concat("the best was ", short_number(*best)) : concat(name_of(goal_.metric), " was never measured");
    add("not-reached", false,
        concat("none of ", steps_.num_kept, " trials ", here(), " reached ", goal_.text(), " in up to ", longest, " steps (", nearest,
               "): steps to result are above, not known"),
        can_widen ? "search the wider space first; then raise train_steps, search more points, or take an easier goal"
                  : "raise train_steps, search more points, or take an easier goal");
  }

  void check_unknown() {
    if (steps_.num_unknown == 0) return;
    add("censored", true,
        concat(steps_.num_unknown, " of ", steps_.num_kept, " trials ", here(), " were stopped before they could reach ", goal_.text(),
               steps_.steps ? concat(" in fewer than ", *steps_.steps, " steps") : "",
               ": the study was stopped early for other goals or a smaller budget"),
        "add this goal to the spec and run the study anew, or ask for a goal that it had");
  }

  void check_infeasible() {
    const int64_t num_ended = steps_.num_kept + steps_.num_infeasible;
    if (static_cast<double>(steps_.num_infeasible) <= kMostInfeasible * static_cast<double>(num_ended)) return;
    add("infeasible", false,
        concat(steps_.num_infeasible, " of ", num_ended, " trials ", here(), " diverged, ",
               short_number(std::round(100.0 * static_cast<double>(steps_.num_infeasible) / static_cast<double>(num_ended))), " %"),
        "most of the search is wasted: lower the upper end of learning_rate (or of momentum)");
  }

  const BatchStudy& batch_;
  const GoalSpec& goal_;
  const StepsToResult& steps_;
  std::vector<Flag> flags_;
};

/// One flag for the whole study, where intervals have no upper end only because trials were stopped at the best so far.
std::vector<Flag> check_intervals(const std::vector<StepsToResult>& steps) {
  std::vector<std::string> open;
  for (const StepsToResult& result : steps)
    if (result.high && std::isinf(*result.high) && result.num_stopped > 0) open.push_back(std::to_string(result.batch_size));
  if (open.empty()) return {};
  return {
      {.rule = "censored",
       .evidence = concat("at batch sizes ", join(open, ", "),
                          " trials were stopped at the best steps so far and too few went on to the goal: steps are exact, but their 95 % "
                          "intervals have no upper end, and those of fits and regimes are wider than they need be"),
       .advice = name_settings("run with a larger --censor-margin, such as 2, in a new folder for intervals")}};
}

}  // namespace

std::vector<Flag> check_curve(const std::vector<StepsToResult>& steps) {
  std::vector<CurvePoint> points;
  for (const StepsToResult& result : steps)
    if (has_point(result)) points.push_back({.result = result, .trials = {}});
  return check_points(points);
}

std::vector<Flag> self_checks(const StudyData& study, const GoalSpec& goal, const std::vector<StepsToResult>& steps) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < study.batches.size(); ++i)
    for (Flag& flag : BatchChecks(study.batches[i], goal, steps[i]).all()) flags.push_back(std::move(flag));
  std::vector<CurvePoint> points;
  for (size_t i = 0; i < study.batches.size(); ++i)
    if (has_point(steps[i])) points.push_back({.result = steps[i], .trials = steps_of_counted_trials(study.batches[i], goal)});
  for (Flag& flag : check_points(points)) flags.push_back(std::move(flag));
  for (Flag& flag : check_intervals(steps)) flags.push_back(std::move(flag));
  return flags;
}

}  // namespace cohort::study

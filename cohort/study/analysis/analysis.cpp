// Fits and regimes of a study with 95 % intervals, by bootstrap over trials.
//
// Regimes are rules on measured points, not on a fit, because fits disagree most where the regimes end:
//   perfect scaling up to the largest B with B S(B) <= 1.25 x that of the smallest B;
//   no further gain from the smallest B with S <= 1.2 x min S, unless that is the largest B: the curve then still falls.
//
//   1. Steps to result, the self-checks, every law and the regimes from the study as it is.
//   2. `num_resamples` times: at every batch size the minimum of as many draws with replacement as trials count (drawn from its exact law
//      with one random number); all fits and regimes again. A batch size at which no drawn trial reached the goal is left out of that
//      round.
//   3. Percentiles 2.5 and 97.5, widened to hold the estimate of step 1: a minimum drawn again is never smaller than the measured one.
//   4. The start of "no further gain" has its own rounds, with half as many draws, and its percentiles are corrected for bias: its rule
//      compares with the least of several minima. As many draws as trials repeat each minimum in 63 of 100 rounds, which hides the error
//      of a single one; a resampled minimum is never smaller, which shifts the rule's result.
//   5. A point that the checks doubt (steps-rise, examples-fall) is also evaluated at the most and at the fewest steps that its neighbours
//      allow; where samples fall, also with as many samples at the larger batch sizes. If the regimes then end at other batch sizes, no
//      regime is named; otherwise the rounds of all these curves enter their intervals.
// Source: Efron 1979 (bootstrap, percentiles), 1981 (bias correction); Bickel, Goetze, van Zwet 1997 (fewer draws than trials where the
// plain bootstrap fails, as for extremes). We do not scale the error back to all draws, so the intervals are wider. Trials, not
// residuals, are resampled, because the randomness of the search is the largest error. It cannot show how much smaller the minimum of a
// fresh search may be (docs/algorithms/batch_size_study.md).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Law kLaws[] = {Law::kHyperbola, Law::kKnee, Law::kLogLinear};

constexpr double kTail = 0.025, kHalf = 0.5;
constexpr std::string_view kFall = "examples-fall";

using Interval = std::pair<double, double>;

/// The interval between two quantiles of a statistic (one value per round), widened to hold the estimate; infinite values sort last. None
/// where too many rounds have no value.
std::optional<Interval> percentiles(std::vector<double> values, double estimate, int num_rounds, Interval shares = {kTail, 1 - kTail}) {
  constexpr double kMostMissing = 0.05;
  const double count = static_cast<double>(values.size());
  if (values.empty() || count < (1 - kMostMissing) * num_rounds) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[std::min(values.size() - 1, static_cast<size_t>(share * count))]; };
  return Interval{std::min(at(shares.first), estimate), std::max(at(shares.second), estimate)};
}

double normal_share(double score) { return 0.5 * std::erfc(-score / std::sqrt(2.0)); }

/// The inverse of normal_share(), by bisection.
double normal_score(double share) {
  double low = -10, high = 10;
  while (high - low > 1e-9) {
    const double middle = (low + high) / 2;
    (normal_share(middle) < share ? low : high) = middle;
  }
  return low;
}

/// The quantiles that bound 95 % where the estimate is not the median of the rounds (half of equal values count as below).
Interval bias_corrected_shares(const std::vector<double>& values, double estimate) {
  double below = 0;
  for (const double value : values) below += value < estimate ? 1 : value == estimate ? kHalf : 0;
  const double count = static_cast<double>(std::max<size_t>(1, values.size()));
  const double shift = 2 * normal_score(std::clamp(below / count, kHalf / count, 1 - kHalf / count));
  const double width = normal_score(1 - kTail);
  return {normal_share(shift - width), normal_share(shift + width)};
}

/// Whether the check says that one point has too many steps.
bool doubts(const Flag& flag) { return flag.refuses && (flag.rule == "steps-rise" || flag.rule == kFall); }

/// Batch sizes whose steps the checks doubt.
struct Doubts {
  std::set<double> points;  ///< Points that may have too many steps.
  std::set<double> before;  ///< Of these, points that need more samples than a larger batch size.

  bool empty() const { return points.empty(); }
  int num_curves() const { return empty() ? 0 : before.empty() ? 2 : 3; }
};

Doubts doubts_of(const std::vector<Flag>& checks) {
  Doubts found;
  for (const Flag& flag : checks) {
    if (!doubts(flag)) continue;
    found.points.insert(static_cast<double>(flag.batch_size));
    if (flag.rule == kFall) found.before.insert(static_cast<double>(flag.batch_size));
  }
  return found;
}

/// Alternative curves in which the doubted points are consistent with the others. Upper: no more steps than a smaller batch size, no more
/// samples than a larger one. Lower: perfect scaling from the smaller ones, and no fewer steps than a larger one. Where samples fall, also
/// a curve in which the larger batch sizes need as many samples as the doubted one.
std::vector<std::vector<StepsPoint>> curves_without_doubt(std::span<const StepsPoint> points, const Doubts& doubts) {
  if (doubts.empty()) return {};
  const std::set<double>& doubted = doubts.points;
  std::vector<StepsPoint> most(points.begin(), points.end());
  for (StepsPoint& point : most) {
    if (!doubted.contains(point.batch_size)) continue;
    for (const StepsPoint& other : points)
      point.steps =
          std::min(point.steps, other.batch_size <= point.batch_size ? other.steps : other.steps * other.batch_size / point.batch_size);
  }
  std::vector<StepsPoint> least = most;
  for (size_t i = 0; i < least.size(); ++i) {
    StepsPoint& point = least[i];
    if (!doubted.contains(point.batch_size)) continue;
    double line = kInfinity, floor = 0;
    for (const StepsPoint& other : most) {
      if (other.batch_size < point.batch_size) line = std::min(line, other.steps * other.batch_size / point.batch_size);
      else if (other.batch_size > point.batch_size && !doubted.contains(other.batch_size)) floor = std::max(floor, other.steps);
    }
    point.steps = std::min(most[i].steps, std::max(line, floor));
  }
  if (doubts.before.empty()) return {most, least};
  std::vector<StepsPoint> without_luck(points.begin(), points.end());
  for (const StepsPoint& fallen : points)
    if (doubts.before.contains(fallen.batch_size))
      for (StepsPoint& point : without_luck)
        if (point.batch_size > fallen.batch_size) point.steps = std::max(point.steps, fallen.steps * fallen.batch_size / point.batch_size);
  return {most, least, without_luck};
}

struct Rounds {
  std::vector<double> critical;
  std::vector<std::vector<double>> parameters;  ///< [parameter][round].
};

/// Collects fits and regimes over the rounds, and sets the intervals at the end.
class Bootstrap {
 public:
  /// Regimes are also computed from the alternative curves of `doubted`, so that intervals cover both.
  Bootstrap(Analysis& analysis, double reference_batch, Doubts doubted)
      : analysis_(analysis), reference_batch_(reference_batch), doubted_(std::move(doubted)) {
    for (const Fit& fit : analysis.fits)
      rounds_.push_back({.critical = {}, .parameters = std::vector<std::vector<double>>(fit.parameters.size())});
  }

  /// `half_drawn` has the points of the same round with half as many draws.
  void add(std::span<const StepsPoint> points, std::span<const StepsPoint> half_drawn) {
    ++num_rounds_;
    if (!half_drawn.empty()) {
      flat_.push_back(find_regimes(half_drawn).flat_from.value_or(kInfinity));
      for (const std::vector<StepsPoint>& curve : curves_without_doubt(half_drawn, doubted_))
        flat_.push_back(find_regimes(curve).flat_from.value_or(kInfinity));
    }
    for (size_t i = 0; i < rounds_.size(); ++i) {
      // A law needs more distinct batch sizes than it has parameters.
      if (points.size() <= rounds_[i].parameters.size()) continue;
      const Fit fit = fit_law(analysis_.fits[i].law, points, reference_batch_);
      rounds_[i].critical.push_back(fit.critical_batch_size);
      for (size_t p = 0; p < fit.parameters.size(); ++p) rounds_[i].parameters[p].push_back(fit.parameters[p].second);
    }
    if (points.empty()) return;
    perfect_.push_back(*find_regimes(points).perfect_to);
    for (const std::vector<StepsPoint>& curve : curves_without_doubt(points, doubted_)) perfect_.push_back(*find_regimes(curve).perfect_to);
  }

  void finish() {
    for (size_t i = 0; i < rounds_.size(); ++i) set_intervals(analysis_.fits[i], rounds_[i]);
    Regimes& regimes = analysis_.regimes;
    if (!regimes.perfect_to) return;
    const int num_curves = (1 + doubted_.num_curves()) * num_rounds_;
    regimes.perfect_interval = percentiles(perfect_, *regimes.perfect_to, num_curves);
    const double flat_from = regimes.flat_from.value_or(kInfinity);
    regimes.flat_interval = percentiles(flat_, flat_from, num_curves, bias_corrected_shares(flat_, flat_from));
  }

 private:
  void set_intervals(Fit& fit, const Rounds& rounds) const {
    fit.interval = percentiles(rounds.critical, fit.critical_batch_size, num_rounds_);
    if (!fit.interval) {
      fit.note += concat(fit.note.empty() ? "" : "; ", "no interval: in ", num_rounds_ - static_cast<int>(rounds.critical.size()), " of ",
                         num_rounds_, " resamples too few batch sizes reach the goal");
      return;
    }
    for (size_t p = 0; p < rounds.parameters.size(); ++p)
      fit.parameter_intervals.push_back(*percentiles(rounds.parameters[p], fit.parameters[p].second, num_rounds_));
  }

  Analysis& analysis_;
  double reference_batch_;
  Doubts doubted_;
  int num_rounds_ = 0;
  std::vector<Rounds> rounds_;  ///< One per fit.
  std::vector<double> perfect_, flat_;
};

/// The sorted steps of the trials that count, of one batch size.
struct Search {
  double batch_size = 0;
  std::vector<double> steps;
};

/// One bootstrap round; `share` is the number of draws per trial that counts.
std::vector<StepsPoint> draw(const std::vector<Search>& searches, uint64_t seed, int round, double share) {
  std::vector<StepsPoint> points;
  for (const Search& search : searches) {
    const double unit = unit_interval(random_bits(seed, round, static_cast<uint64_t>(search.batch_size)));
    const double steps = search.steps[index_of_minimum(unit, search.steps.size(), share)];
    if (std::isfinite(steps) && steps > 0) points.push_back({.batch_size = search.batch_size, .steps = steps});
  }
  return points;
}

std::vector<Fit> fit_all(std::span<const StepsPoint> points, double reference_batch) {
  std::vector<Fit> fits;
  for (const Law law : kLaws) {
    try {
      fits.push_back(fit_law(law, points, reference_batch));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadInput) throw;  // Too few batch sizes for this law; a flag reports that.
    }
  }
  return fits;
}

std::string ends_text(const Regimes& regimes) {
  return concat("perfect scaling to ", *regimes.perfect_to, ", ",
                regimes.flat_from ? concat("no further gain from ", *regimes.flat_from) : std::string("steps that fall to the end"));
}

/// A doubted point refuses the regimes only where they end elsewhere on an alternative curve.
void weigh_doubts(std::span<const StepsPoint> points, const Regimes& regimes, std::vector<Flag>& checks) {
  const Doubts doubted = doubts_of(checks);
  if (doubted.empty() || !regimes.perfect_to) return;
  std::optional<Regimes> other;  // Regimes that end elsewhere.
  for (const std::vector<StepsPoint>& curve : curves_without_doubt(points, doubted)) {
    const Regimes found = find_regimes(curve);
    if (found.perfect_to != regimes.perfect_to || found.flat_from != regimes.flat_from) other = found;
  }
  for (Flag& flag : checks) {
    if (!doubts(flag)) continue;
    flag.refuses = other.has_value();
    if (!other) flag.advice += "; regimes end at the same batch sizes with or without this point";
    else flag.advice += concat("; as measured there is ", ends_text(regimes), ", and otherwise it may be ", ends_text(*other));
  }
}

void apply_checks(Analysis& analysis, std::span<const StepsPoint> points, std::vector<Flag> checks) {
  Regimes& regimes = analysis.regimes;
  weigh_doubts(points, regimes, checks);
  analysis.checks = std::move(checks);
  for (const Flag& flag : analysis.checks) {
    regimes.flags.push_back(flag.text());
    regimes.refused |= flag.refuses;
  }
  if (!regimes.refused) return;
  regimes.perfect_to.reset();
  regimes.flat_from.reset();
}

}  // namespace

Analysis analyse(const StudyData& study, const GoalSpec& goal, const AnalysisOptions& options) {
  check_is_measured(study, goal);
  Analysis analysis = {.goal = goal, .steps = steps_to_result(study, goal)};
  const std::vector<StepsPoint> points = points_of(analysis.steps);
  // All rounds use the same reference, also those where the smallest batch size is missing.
  const double reference = options.reference_batch > 0 || points.empty() ? options.reference_batch : points.front().batch_size;
  analysis.fits = fit_all(points, reference);
  analysis.regimes = find_regimes(points);
  std::vector<Flag> checks = self_checks(study, goal, analysis.steps);
  const Doubts doubted = doubts_of(checks);
  apply_checks(analysis, points, std::move(checks));

  std::vector<Search> searches;
  for (const BatchStudy& batch : study.batches)
    if (Search search = {static_cast<double>(batch.batch_size), steps_of_counted_trials(batch, goal)}; !search.steps.empty())
      searches.push_back(std::move(search));
  Bootstrap bootstrap(analysis, reference, doubted);
  for (int round = 0; round < options.num_resamples; ++round)
    bootstrap.add(draw(searches, options.seed, round, 1), draw(searches, options.seed, round, kHalf));
  bootstrap.finish();
  return analysis;
}

Analysis analyse_table(std::span<const StepsPoint> points, double reference_batch) {
  Analysis analysis;
  std::map<int64_t, int64_t> least;  // Of several rows of a batch size the minimum counts.
  for (const StepsPoint& point : points) {
    const int64_t steps = std::max<int64_t>(1, std::llround(point.steps));
    const auto [place, is_new] = least.try_emplace(std::llround(point.batch_size), steps);
    if (!is_new) place->second = std::min(place->second, steps);
  }
  for (const auto& [batch_size, steps] : least) analysis.steps.push_back({.batch_size = batch_size, .steps = steps});
  analysis.fits = fit_all(points, reference_batch);
  analysis.regimes = find_regimes(points);
  apply_checks(analysis, points, check_curve(analysis.steps));
  return analysis;
}

Regimes find_regimes(std::span<const StepsPoint> points) {
  std::map<double, double> steps;  // By batch size; of several rows the minimum counts.
  for (const StepsPoint& point : points) {
    const auto [place, is_new] = steps.try_emplace(point.batch_size, point.steps);
    if (!is_new) place->second = std::min(place->second, point.steps);
  }
  Regimes regimes;
  if (steps.empty()) return regimes;
  const double first_examples = steps.begin()->first * steps.begin()->second;
  double least = steps.begin()->second;
  for (const auto& [batch, count] : steps) {
    if (batch * count <= kPerfectFactor * first_examples) regimes.perfect_to = batch;
    least = std::min(least, count);
  }
  for (const auto& [batch, count] : steps) {
    if (count > kFlatFactor * least) continue;
    if (batch != steps.rbegin()->first) regimes.flat_from = batch;
    break;
  }
  return regimes;
}

}  // namespace cohort::study

#pragma once
// Laws of steps against batch size, fitted by least squares in log S.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/spec/data.h"

namespace cohort::study {

struct StepsPoint {
  double batch_size = 0, steps = 0;
};

enum class Law { kHyperbola, kKnee, kLogLinear };
const char* name_of(Law law);  ///< "hyperbola", "knee", "log-linear"
Law parse_law(const std::string& name);

/// hyperbola   S = Smin (1 + Bc / B)                      critical batch size Bc
/// knee        S = Smin (1 + (Bc / B)^e)^(1/e)            Bc
/// log-linear  log S = log(a + b / B)                     where S is 20 % above linear scaling from the reference batch: 1.2 Bref + 0.2 b /
/// a
struct Fit {
  Law law = Law::kHyperbola;
  std::vector<std::pair<std::string, double>> parameters;  ///< {"Smin", "Bc"}, with "e" for knee, {"a", "b"}.
  double critical_batch_size = 0;     ///< Infinite where the steps fall as 1 / B to the end; 0 (but for log-linear) where they do not fall.
  double min_examples = 0;            ///< Smin x Bc (b of log-linear): B S(B) at small batches; finite where Bc is infinite and Smin 0.
  double rms_log = 0;                 ///< Root of the mean squared residual of log S.
  std::vector<double> residuals_log;  ///< log measured - log fitted, one a point.
  std::optional<std::pair<double, double>> interval;           ///< 95 % of the critical batch size, by bootstrap over trials.
  std::vector<std::pair<double, double>> parameter_intervals;  ///< One a parameter, or empty.
  std::string note;                                            ///< A sentence where the data do not bound the law; else empty.

  double steps_at(double batch_size) const;
};

/// `reference_batch` 0: the smallest. Error(kBadInput) with fewer distinct batch sizes than the law has parameters + 1, or values that are
/// not positive.
Fit fit_law(Law law, std::span<const StepsPoint> points, double reference_batch);

inline constexpr double kPerfectFactor = 1.25, kFlatFactor = 1.2;
/// Where regimes end. Rules: perfect to the largest B with B S(B) <= 1.25 x that of the smallest B; flat from the smallest B with
/// S <= 1.2 x min S (none where the largest B still falls by more than that).
struct Regimes {
  std::optional<double> perfect_to, flat_from;  ///< perfect_to the largest batch size: perfect scaling is not left.
  /// 95 %, by bootstrap over trials; an infinite end of flat_interval: not reached. flat_interval with half the draws, corrected for bias.
  std::optional<std::pair<double, double>> perfect_interval, flat_interval;
  std::vector<std::string> flags;  ///< Sentences of self_checks.h that speak against the result.
  bool refused = false;            ///< The evidence does not carry a regime: perfect_to and flat_from are none.
};
Regimes find_regimes(std::span<const StepsPoint> points);

/// Fits of all laws and the regimes of a study at a goal, with bootstrap intervals: each batch size's trials are drawn again with
/// replacement `num_resamples` times, steps to result, fits and regimes made anew each time.
struct Analysis {
  GoalSpec goal;
  std::vector<StepsToResult> steps;
  std::vector<Fit> fits;  ///< Those that could be made.
  Regimes regimes;
  std::vector<Flag> checks;  ///< What regimes.flags says, in parts.
};
struct AnalysisOptions {
  double reference_batch = 0;  ///< 0: the smallest batch size.
  int num_resamples = 1000;
  uint64_t seed = 1;
};
/// Error(kBadInput) where the study does not measure the goal's metric.
Analysis analyse(const StudyData& study, const GoalSpec& goal, const AnalysisOptions& options = {});
/// The same of a table without trials: no intervals, and only the checks that need no trials.
Analysis analyse_table(std::span<const StepsPoint> points, double reference_batch = 0);
/// Those that have steps.
std::vector<StepsPoint> points_of(const std::vector<StepsToResult>& steps);

/// `batch_size,steps` with a header, fields in quotes or not; extra columns are ignored, empty steps (or NA: goal not reached) too.
/// Error(kBadInput) with file and line.
std::vector<StepsPoint> read_steps_table(const std::string& path);

}  // namespace cohort::study

#pragma once
// Analysis of a study at a goal: laws of steps against batch size, fitted by least squares in log S, and the ends of the scaling regimes.

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
/// log-linear  log S = log(a + b / B)                     1.2 Bref + 0.2 b / a: S is 20 % above linear scaling from the reference batch
struct Fit {
  Law law = Law::kHyperbola;
  std::vector<std::pair<std::string, double>> parameters;  ///< {"Smin", "Bc"}, with "e" for knee, {"a", "b"}.
  double critical_batch_size = 0;     ///< Infinite where steps fall as 1 / B to the end; 0 (except log-linear) where they do not fall.
  double min_examples = 0;            ///< Smin x Bc (b of log-linear): B S(B) at small batches; finite where Bc is infinite and Smin 0.
  double rms_log = 0;                 ///< Root of the mean squared residual of log S.
  std::vector<double> residuals_log;  ///< log measured - log fitted, one per point.
  std::optional<std::pair<double, double>> interval;           ///< 95 % interval of the critical batch size, by bootstrap over trials.
  std::vector<std::pair<double, double>> parameter_intervals;  ///< One per parameter, or empty.
  std::string note;                                            ///< Set where the data do not bound the law.

  double steps_at(double batch_size) const;
};

/// `reference_batch` 0 is the smallest one. Error(kBadInput) with fewer distinct batch sizes than the law has parameters + 1, or values
/// that are not positive.
Fit fit_law(Law law, std::span<const StepsPoint> points, double reference_batch);

inline constexpr double kPerfectFactor = 1.25, kFlatFactor = 1.2;
/// The ends of the scaling regimes: perfect to the largest B with B S(B) <= 1.25 x that of the smallest B; flat from the smallest B with
/// S <= 1.2 x min S (none where the largest B still falls by more than that).
struct Regimes {
  std::optional<double> perfect_to, flat_from;  ///< perfect_to is the largest batch size where scaling is perfect to the end.
  /// 95 % intervals, by bootstrap over trials. An infinite end of flat_interval means that it is not reached.
  std::optional<std::pair<double, double>> perfect_interval, flat_interval;
  std::vector<std::string> flags;  ///< Sentences of the self-checks against the result.
  bool refused = false;            ///< The evidence supports no regime: perfect_to and flat_from are unset.
};
Regimes find_regimes(std::span<const StepsPoint> points);

/// Fits of all laws and the regimes of a study at a goal, with bootstrap intervals over trials (analysis.cpp).
struct Analysis {
  GoalSpec goal;
  std::vector<StepsToResult> steps;
  std::vector<Fit> fits;  ///< Of the laws for which there are enough batch sizes.
  Regimes regimes;
  std::vector<Flag> checks;  ///< The checks that regimes.flags is the text of.
};
struct AnalysisOptions {
  double reference_batch = 0;  ///< 0: the smallest batch size.
  int num_resamples = 1000;
  uint64_t seed = 1;
};
/// Error(kBadInput) where the study does not measure the goal's metric.
Analysis analyse(const StudyData& study, const GoalSpec& goal, const AnalysisOptions& options = {});
/// The analysis of a table without trials: no intervals, and only the checks that need no trials.
Analysis analyse_table(std::span<const StepsPoint> points, double reference_batch = 0);
/// The results that have steps above 0.
std::vector<StepsPoint> points_of(const std::vector<StepsToResult>& steps);

/// Reads a CSV table with columns batch_size and steps; rows with empty or NA steps (goal not reached) are skipped. Error(kBadInput) with
/// file and line.
std::vector<StepsPoint> read_steps_table(const std::string& path);

}  // namespace cohort::study

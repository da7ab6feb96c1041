#pragma once
// The measurements of a study, as the store or an archive holds them. Plots, fits and checks are computed from them alone.

#include <array>
#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {

/// The metrics of an evaluation. Losses are mean cross-entropies (nats), errors shares in [0, 1], precisions averages in [0, 1].
enum Metric {
  kTrainLoss,
  kTrainError,
  kTrainPrecision,
  kValLoss,
  kValError,
  kValPrecision,
  kTestLoss,
  kTestError,
  kTestPrecision,
  kNumMetrics
};

struct Measurement {
  Measurement() { values.fill(std::numeric_limits<double>::quiet_NaN()); }
  int64_t step = 0;                        ///< Updates done.
  std::array<double, kNumMetrics> values;  ///< By Metric; NaN where not measured.
};

/// kComplete ran to its budget (or to the last goal); kCensored was stopped where it could no longer change the result
/// (docs/algorithms/batch_size_study.md); both count. kInfeasible diverged and does not count. kIncomplete was abandoned, and is ignored.
enum class TrialStatus { kComplete, kCensored, kInfeasible, kIncomplete };
const char* name_of(TrialStatus status);  ///< "COMPLETE", "CENSORED", ...
TrialStatus parse_trial_status(const std::string& name);

using MetricSet = std::bitset<kNumMetrics>;

/// Facts about all measurements of a trial where only some are in memory (archive/archive.h). Read by analysis/steps_to_result.h.
struct WholeCourse {
  struct Place {
    int64_t number = 0;       ///< Number of measurements after step 0, up to and including this one.
    int64_t step_before = 0;  ///< Step of the previous measurement; 0 where there is none.
  };
  int64_t num_measurements = 0;
  MetricSet measured;         ///< Metrics with a value at any measurement.
  MetricSet kept;             ///< Metrics whose best-so-far measurements are all in memory.
  std::vector<Place> places;  ///< One per measurement in memory.
};

struct Trial {
  int64_t id = 0;  ///< Within its batch size: the index of its point, from 0 (an archive may count from 1).
  Parameters parameters;
  TrialStatus status = TrialStatus::kIncomplete;
  int64_t steps = 0;                      ///< Trained steps; for kInfeasible the step at which it diverged.
  double seconds = 0;                     ///< Wall clock times workers, over all sessions; 0 where unknown.
  std::vector<Measurement> measurements;  ///< In increasing order of steps.
  std::optional<WholeCourse> whole;       ///< Set where `measurements` holds only some of the measurements.
};

/// The search at one batch size.
struct BatchStudy {
  int64_t batch_size = 0;
  SearchSpace space;
  int64_t num_trials = 100;     ///< Number of trials that count: the first N by id that are complete or censored.
  int64_t train_steps = 0;      ///< Budget of a trial; 0: limited by time instead (in some archives).
  bool early_stopping = false;  ///< Some trials were stopped before their budget (censoring, halving, or as the archive says).
  std::vector<Trial> trials;    ///< In increasing order of ids.
};

/// A goal is reached strictly below the value, for precisions strictly above it.
struct GoalSpec {
  Metric metric = kValError;
  double value = 0;
  bool reached(const Measurement& measurement) const;  ///< False for NaN.
  std::string text() const;                            ///< "val_error<0.12"
};
/// Parses `val_error<0.12`, `val_precision>0.31`. Error(kBadInput) with the expected form.
GoalSpec parse_goal_spec(const std::string& text);
const char* name_of(Metric metric);  ///< "val_error"
bool higher_is_better(Metric metric);
bool is_better(double value, double other, Metric metric);

struct StudyData {
  std::string dataset, model, optimizer;  ///< The workload's three names, as folder names of an archive.
  std::vector<GoalSpec> goals;            ///< The first is the main one; may be empty (an archive has none).
  int64_t num_train_samples = 0;          ///< 0 where unknown.
  uint64_t seed = 0;
  std::vector<BatchStudy> batches;  ///< In increasing order of batch sizes.
  /// Sentences on what limits the validity of the results (such as successive halving); usually empty.
  std::vector<std::string> warnings;
};

/// Null where the batch size or id does not exist.
const BatchStudy* find_batch(const StudyData& study, int64_t batch_size);
const Trial* find_trial(const BatchStudy& batch, int64_t id);
/// The shortest text that reads back as the same double: 0.1, 1e-05, 3.
std::string number_text(double value);
/// "learning_rate 0.0123, momentum 0.9", with four significant digits.
std::string parameters_text(const Parameters& parameters);

}  // namespace cohort::study

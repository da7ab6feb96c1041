#pragma once
// The noun of this room: all that a study measured, as the store or an archive holds it. Plots, fits and checks are made from it alone.

#include <array>
#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/spec/metaparameter.h"

namespace cohort::study {

/// What is measured at an evaluation. Losses are mean cross-entropies (nats), errors shares in [0, 1], precisions averages in [0, 1].
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

/// kComplete ran its budget (or to its goal, where nothing more was asked); kCensored was stopped where it could no longer matter
/// (docs/algorithms/batch_size_study.md); both count. kInfeasible diverged and does not count. kIncomplete was left, and is ignored.
enum class TrialStatus { kComplete, kCensored, kInfeasible, kIncomplete };
const char* name_of(TrialStatus status);  ///< "COMPLETE", "CENSORED", ...
TrialStatus parse_trial_status(const std::string& name);

using MetricSet = std::bitset<kNumMetrics>;

/// What all measurements of a trial were, where only some are in memory (archive/archive.h). Asked through analysis/steps_to_result.h.
struct WholeCourse {
  struct Place {
    int64_t number = 0;       ///< How many there are after step 0, up to and with this one.
    int64_t step_before = 0;  ///< Of the one before; 0 where there is none.
  };
  int64_t num_measurements = 0;
  MetricSet measured;         ///< Those with a value at any of them.
  MetricSet kept;             ///< Those whose records are all in memory.
  std::vector<Place> places;  ///< One a measurement in memory.
};

struct Trial {
  int64_t id = 0;  ///< Within its batch size: the index of its point, from 0 (an archive may count from 1).
  Parameters parameters;
  TrialStatus status = TrialStatus::kIncomplete;
  int64_t steps = 0;                      ///< Trained; where it diverged, for kInfeasible.
  double seconds = 0;                     ///< Of all workers and sessions together: processor time that it held; 0 where unknown.
  std::vector<Measurement> measurements;  ///< Steps rise.
  std::optional<WholeCourse> whole;       ///< Where `measurements` are not all that there are.
};

/// The search at one batch size.
struct BatchStudy {
  int64_t batch_size = 0;
  SearchSpace space;
  int64_t num_trials = 100;     ///< How many trials count: the first N by id that are complete or censored.
  int64_t train_steps = 0;      ///< Budget of a trial; 0: by time (archives have that).
  bool early_stopping = false;  ///< Some trials were stopped before their budget (censoring, halving, or as the archive says).
  std::vector<Trial> trials;    ///< Ids rise.
};

/// `name` is one of val_error, val_loss, val_precision, ...; lower is better but for precision. Strictly beyond the value reaches it.
struct GoalSpec {
  Metric metric = kValError;
  double value = 0;
  bool reached(const Measurement& measurement) const;  ///< Not by NaN.
  std::string text() const;                            ///< "val_error<0.12"
};
/// `val_error<0.12`, `val_precision>0.31`. Error(kBadInput) with what it may be.
GoalSpec parse_goal_spec(const std::string& text);
const char* name_of(Metric metric);  ///< "val_error"
bool higher_is_better(Metric metric);

struct StudyData {
  std::string dataset, model, optimizer;  ///< The workload's three names, as folder names of an archive.
  std::vector<GoalSpec> goals;            ///< The first is the main one; may be empty (an archive has none).
  int64_t num_train_samples = 0;          ///< 0 where unknown.
  uint64_t seed = 0;
  std::vector<BatchStudy> batches;  ///< Batch sizes rise.
  /// Sentences of what makes its results less than they seem, however they are shown (successive halving); empty for most.
  std::vector<std::string> warnings;
};

/// Null where there is none.
const BatchStudy* find_batch(const StudyData& study, int64_t batch_size);
const Trial* find_trial(const BatchStudy& batch, int64_t id);
/// "learning_rate 0.0123, momentum 0.9", for people: four digits.
std::string parameters_text(const Parameters& parameters);

}  // namespace cohort::study

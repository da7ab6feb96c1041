#pragma once
// The trials of one batch size as a state machine without clocks, files or threads: which trial next, how far it is wanted, what it counts
// as when all that decides it is known. Two of them: trial_queue.h (exact) and halving.h (biased).

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
/// By watched goal: the first evaluated step that reached it, or kNever.
using ReachedSteps = std::vector<int64_t>;

/// How far one trial is wanted, as known now. It only ever falls.
struct TrialBound {
  int64_t stop_at = kNever;  ///< 0: the trial is not wanted any more.
  ReachedSteps best;         ///< Of the trials with lower ids.
  bool operator==(const TrialBound&) const = default;
};

/// When a trial can not matter any more. It watches the strictest goal of each metric; with several metrics a trial goes on while it can
/// still be the first to one of them.
class CensorRule {
 public:
  explicit CensorRule(const StudySpec& spec);
  const std::vector<GoalSpec>& goals() const { return goals_; }
  ReachedSteps none_reached() const { return ReachedSteps(goals_.size(), kNever); }
  /// Notes in `own` which goals this measurement is the first to reach.
  void note(const Measurement& measurement, ReachedSteps& own) const;
  /// The trial stops at its first evaluation at or beyond this step: the largest over the goals of ceil(margin x the fewer steps of the
  /// best lower trial and its own); kNever while one of them was reached by neither, or without censoring.
  int64_t wanted(const ReachedSteps& best, const ReachedSteps& own) const;
  /// The same with a bound's own limit.
  int64_t wanted(const TrialBound& bound, const ReachedSteps& own) const;

 private:
  std::vector<GoalSpec> goals_;
  double margin_ = 1;
  bool enabled_ = true;
};

/// What the queue needs to know of a trial that ended; its measurements stay outside.
struct TrialSummary {
  int64_t id = 0;
  TrialStatus status = TrialStatus::kIncomplete;  ///< As the runner said (kCensored: stopped at the bound), or as stored.
  int64_t steps = 0;
  ReachedSteps reached;
  std::vector<int64_t> evaluated;  ///< Steps of its measurements.
  std::vector<double> values;      ///< Of the first goal's metric, one for each of `evaluated`.
};
TrialSummary summarise(const Trial& trial, const CensorRule& rule, Metric metric);

/// A trial as it is to be stored: the first `num_measurements` of what was measured.
struct FinalTrial {
  int64_t id = 0;
  TrialStatus status = TrialStatus::kIncomplete;
  int64_t steps = 0;
  size_t num_measurements = 0;
};

/// One thread. What take_final() returns depends on the trials' measurements alone: not on the order in which they end, on how many run at
/// once, or on when a bound arrived.
class BatchQueue {
 public:
  virtual ~BatchQueue() = default;
  /// A trial that the store holds: before anything else, ids from 0 without gaps.
  virtual void restore(const TrialSummary& stored) = 0;
  /// The next trial to run; it counts as running from now on. None: wait for others, or done.
  virtual std::optional<int64_t> next() = 0;
  virtual TrialBound bound(int64_t id) const = 0;
  /// A running trial will not end: it is given out again.
  virtual void lost(int64_t id) = 0;
  /// A running trial ended, or (before the first next()) one that had ended when the study was stopped.
  virtual void ended(TrialSummary summary) = 0;
  /// Trials that are decided and not yet taken, ids rising; they are to be stored now.
  virtual std::vector<FinalTrial> take_final() = 0;
  /// Every trial that will be stored has been taken. Trials that still run are not needed.
  virtual bool done() const = 0;
  virtual int64_t num_taken() const = 0;
  /// Trials that count among them.
  virtual int64_t num_kept() const = 0;
  /// Trials still to be decided at least (each infeasible one adds one).
  virtual int64_t num_left() const = 0;
  /// The best steps so far to each watched goal, over decided trials.
  virtual const ReachedSteps& best() const = 0;
};

std::unique_ptr<BatchQueue> make_batch_queue(const StudySpec& spec, const BatchSpec& batch);

}  // namespace cohort::study

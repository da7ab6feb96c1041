#pragma once
// The trials of one batch size as a state machine without clocks, files or threads: which trial runs next, up to which step, and its final
// status. Two kinds: TrialQueue (exact) and HalvingQueue (biased); the algorithms are in batch_queue.cpp.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
/// For each watched goal the first evaluated step that reached it, or kNever.
using ReachedSteps = std::vector<int64_t>;

/// The currently known bound on the steps of one trial. It only decreases.
struct TrialBound {
  int64_t stop_at = kNever;  ///< 0: the trial is no longer needed.
  ReachedSteps best;         ///< The best of the trials with lower ids.
  bool operator==(const TrialBound&) const = default;
};

/// Decides when a trial can no longer change the result. It watches the strictest goal of each metric; with several metrics a trial
/// continues while it can still be the first to reach one of them.
class CensorRule {
 public:
  explicit CensorRule(const StudySpec& spec);
  const std::vector<GoalSpec>& goals() const { return goals_; }
  ReachedSteps none_reached() const { return ReachedSteps(goals_.size(), kNever); }
  /// Records in `own` the goals that this measurement is the first to reach.
  void note(const Measurement& measurement, ReachedSteps& own) const;
  /// The trial stops at its first evaluation at or beyond this step: the largest over the goals of ceil(margin x the fewer steps of the
  /// best lower trial and its own); kNever while one of them was reached by neither, or without censoring.
  int64_t step_limit(const ReachedSteps& best, const ReachedSteps& own) const;
  /// The same, limited by the bound's own stop_at.
  int64_t step_limit(const TrialBound& bound, const ReachedSteps& own) const;

 private:
  std::vector<GoalSpec> goals_;
  double margin_ = 1;
  bool enabled_ = true;
};

/// What the queue needs to know of an ended trial, without its measurements.
struct TrialSummary {
  int64_t id = 0;
  TrialStatus status = TrialStatus::kIncomplete;  ///< As the runner reported (kCensored: stopped at the bound), or as stored.
  int64_t steps = 0;
  ReachedSteps reached;
  std::vector<int64_t> evaluated;  ///< Steps of its measurements.
  std::vector<double> values;      ///< Values of the first goal's metric, parallel to `evaluated`.
};
TrialSummary summarise(const Trial& trial, const CensorRule& rule, Metric metric);

/// A trial as it is to be stored, with the first `num_measurements` of its measurements.
struct FinalTrial {
  int64_t id = 0;
  TrialStatus status = TrialStatus::kIncomplete;
  int64_t steps = 0;
  size_t num_measurements = 0;
};

/// Used by one thread. What take_final() returns depends on the trials' measurements alone: not on the order in which they end, on how many
/// run at once, or on when a bound arrived.
class BatchQueue {
 public:
  BatchQueue(const StudySpec& spec, const BatchSpec& batch);
  virtual ~BatchQueue() = default;
  /// Adds a trial that the store holds; called before all other functions, with ids from 0 without gaps.
  virtual void restore(const TrialSummary& stored) = 0;
  /// The next trial to run, which counts as running from then on. None where all others must end first, or all are done.
  virtual std::optional<int64_t> next() = 0;
  virtual TrialBound bound(int64_t id) const = 0;
  /// A running trial was lost and has to be run again.
  virtual void lost(int64_t id) = 0;
  /// A running trial ended; or, before the first next(), a trial that had ended when the study was stopped.
  virtual void ended(TrialSummary summary) = 0;
  /// Trials that are decided and not yet taken, in increasing order of ids; the caller stores them.
  virtual std::vector<FinalTrial> take_final() = 0;
  /// Whether all trials that will be stored have been taken. Trials that still run are not needed.
  virtual bool done() const = 0;
  virtual int64_t num_taken() const = 0;
  /// Number of taken trials that count.
  int64_t num_kept() const { return num_kept_; }
  /// Lower bound of the trials still to be decided (each infeasible one adds one).
  virtual int64_t num_left() const = 0;
  /// The best steps so far to each watched goal, over decided trials.
  const ReachedSteps& best() const { return best_; }

 protected:
  CensorRule rule_;
  int64_t num_trials_, max_draws_, num_kept_ = 0;
  ReachedSteps best_;
};

std::unique_ptr<BatchQueue> make_batch_queue(const StudySpec& spec, const BatchSpec& batch);

/// Exact: incumbent censoring, with results that do not depend on timing.
class TrialQueue final : public BatchQueue {
 public:
  TrialQueue(const StudySpec& spec, const BatchSpec& batch);
  void restore(const TrialSummary& stored) override;
  std::optional<int64_t> next() override;
  TrialBound bound(int64_t id) const override;
  void lost(int64_t id) override;
  void ended(TrialSummary summary) override;
  std::vector<FinalTrial> take_final() override;
  bool done() const override;
  int64_t num_taken() const override { return first_undecided_; }
  int64_t num_left() const override;

 private:
  bool needed(int64_t id) const;
  FinalTrial classify(const TrialSummary& summary) const;
  void count(const FinalTrial& trial, const ReachedSteps& reached);

  int64_t train_steps_;
  int64_t first_undecided_ = 0;            ///< All lower ids are decided.
  int64_t first_undrawn_ = 0;              ///< This id and all higher ones have not been started.
  std::set<int64_t> running_, waiting_;    ///< waiting_: lost trials that have to be run again.
  std::map<int64_t, TrialSummary> ended_;  ///< Ended trials that are not yet decided.
};

/// Biased: successive halving over the trials of a batch size.
class HalvingQueue final : public BatchQueue {
 public:
  HalvingQueue(const StudySpec& spec, const BatchSpec& batch);
  void restore(const TrialSummary& stored) override;
  std::optional<int64_t> next() override;
  TrialBound bound(int64_t id) const override;
  void lost(int64_t id) override { running_.erase(id); }
  void ended(TrialSummary summary) override;
  std::vector<FinalTrial> take_final() override;
  bool done() const override { return taken_; }
  int64_t num_taken() const override { return num_taken_; }
  int64_t num_left() const override;

 private:
  static constexpr int kNumRungs = 3;
  /// The next work, a function of the ended trials alone.
  struct Plan {
    std::map<int64_t, int64_t> to_run;  ///< Id to the step of its rung, including running trials.
    std::set<int64_t> members;          ///< Trials compared at the first rung, or infeasible before it: all that will be stored.
    bool done = false;
  };
  Plan plan() const;
  bool ended_by_goal(const TrialSummary& summary) const;
  bool at_rung(const TrialSummary& summary, int rung) const;
  std::set<int64_t> survivors(const std::set<int64_t>& members, int rung) const;

  Metric metric_;
  std::array<int64_t, kNumRungs> rungs_{};
  std::map<int64_t, TrialSummary> ended_;
  std::set<int64_t> running_, stored_;
  int64_t num_taken_ = 0;
  bool taken_ = false;
};

}  // namespace cohort::study

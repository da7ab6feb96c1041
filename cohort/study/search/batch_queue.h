#pragma once
// The trials of one batch size as a state machine without clocks, files or threads: which trial next, how far it is wanted, what it counts
// as when all that decides it is known. Two of them: TrialQueue (exact) and HalvingQueue (biased).

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

// Incumbent censoring that gives the same trials, bit for bit, whatever finishes first.
//
// Steps to result are a minimum over trials, so a trial that has run longer than the best one can not change it. Which trial is the best
// "so far" would depend on timing; here it is the best of those with LOWER ids:
//   c_i = margin x the fewest steps to the goal among trials below i that count,
// and trial i is kept up to its first evaluation at or after c_i. While lower ids still run, c_i is not known but bounded from above by
// what has ended, so a trial may overrun, never fall short. When all lower ids are decided it is cut at c_i and classified:
//   evaluated at or after c_i: what came later is dropped (a divergence too); CENSORED, or COMPLETE where its own goal ended it;
//   diverged before: INFEASIBLE, which draws one more point; else COMPLETE.
// Trials are decided in the order of their ids, the batch size is done with the num_trials-th that counts, and later ones are dropped.
// (Shallue et al., 2019, run every trial to its budget. A trial that would have diverged after c_i counts here and not there.)

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
  int64_t num_kept() const override { return num_kept_; }
  int64_t num_left() const override;
  const ReachedSteps& best() const override { return best_; }

 private:
  bool needed(int64_t id) const;
  FinalTrial classify(const TrialSummary& summary) const;
  void count(const FinalTrial& trial, const ReachedSteps& reached);

  CensorRule rule_;
  int64_t num_trials_ = 0, train_steps_ = 0, max_draws_ = 0;
  int64_t first_undecided_ = 0;  ///< All lower ids are decided.
  int64_t first_undrawn_ = 0;    ///< No id from here on was given out.
  int64_t num_kept_ = 0;
  ReachedSteps best_;                      ///< Of the decided ones that count.
  std::set<int64_t> running_, waiting_;    ///< waiting_: drawn, lost, to be given out again.
  std::map<int64_t, TrialSummary> ended_;  ///< Ended, not yet decided.
};

// Successive halving over the trials of a batch size, behind a flag because it is BIASED: it judges trials by their early curves, and slow
// starters (low learning rates, high momentum, late decay), which are often the best at the end, are cut first: short-horizon bias (Wu et
// al., 2018, 1803.02021). Its results say so.
//
// Rungs stand at budget / 9, budget / 3 and the budget. The first num_trials that do not diverge before the first rung are compared there
// by the first goal's metric; the best third (rounded up, ties to the lower id) goes on, the others are CENSORED where they stand; the same
// at the second rung. A trial that reaches its goal stops as in TrialQueue, and is not compared. One that diverges after the first rung
// is INFEASIBLE and is not replaced. All trials of the batch size are decided at once, at its end. (Jamieson and Talwalkar, 2016,
// 1502.07943, one bracket.)

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
  int64_t num_kept() const override { return num_kept_; }
  int64_t num_left() const override;
  const ReachedSteps& best() const override { return best_; }

 private:
  static constexpr int kNumRungs = 3;
  /// What is to be done next, from what has ended alone.
  struct Plan {
    std::map<int64_t, int64_t> to_run;  ///< Id -> the rung's step, also of those that run now.
    std::set<int64_t> members;          ///< Compared at the first rung, or infeasible below them: all that will be stored.
    bool done = false;
  };
  Plan plan() const;
  bool ended_by_goal(const TrialSummary& summary) const;
  bool at_rung(const TrialSummary& summary, int rung) const;
  std::set<int64_t> survivors(const std::set<int64_t>& members, int rung) const;

  CensorRule rule_;
  Metric metric_;
  int64_t num_trials_ = 0, max_draws_ = 0;
  std::array<int64_t, kNumRungs> rungs_{};
  std::map<int64_t, TrialSummary> ended_;
  std::set<int64_t> running_, stored_;
  ReachedSteps best_;
  int64_t num_kept_ = 0, num_taken_ = 0;
  bool taken_ = false;
};

}  // namespace cohort::study

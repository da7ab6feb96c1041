#pragma once
// Successive halving over the trials of a batch size, behind a flag because it is BIASED: it judges trials by their early curves, and slow
// starters (low learning rates, high momentum, late decay), which are often the best at the end, are cut first: short-horizon bias (Wu et
// al., 2018, 1803.02021). Its results say so.
//
// Rungs stand at budget / 9, budget / 3 and the budget. The first num_trials that do not diverge before the first rung are compared there
// by the first goal's metric; the best third (rounded up, ties to the lower id) goes on, the others are CENSORED where they stand; the same
// at the second rung. A trial that reaches its goal stops as in trial_queue.h, and is not compared. One that diverges after the first rung
// is INFEASIBLE and is not replaced. All trials of the batch size are decided at once, at its end. (Jamieson and Talwalkar, 2016,
// 1502.07943, one bracket.)

#include <array>
#include <map>
#include <set>

#include "cohort/study/search/batch_queue.h"

namespace cohort::study {

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

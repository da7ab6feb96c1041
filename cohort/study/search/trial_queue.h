#pragma once
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

#include <map>
#include <set>

#include "cohort/study/search/batch_queue.h"

namespace cohort::study {

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

}  // namespace cohort::study

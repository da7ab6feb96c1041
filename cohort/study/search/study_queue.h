#pragma once
// Scheduling over all batch sizes of a study: the phase of each, and which one the next free worker gets. Torch-free; one thread.

#include <memory>
#include <optional>
#include <vector>

#include "cohort/study/search/batch_queue.h"

namespace cohort::study {

/// Number of ranks that train a batch of this size together, so that none has more than spec.max_batch_per_worker samples; at most
/// `num_ranks`.
int team_size(const StudySpec& spec, int64_t batch_size, int num_ranks);

/// Batch sizes with equal team sizes form a phase; phases run in increasing order of team sizes. Within a phase a free team gets the batch
/// size on which the fewest teams work, because sequential trials are censored better than concurrent ones; ties go to the one with the
/// most work left, so that all end together. The stored trials and their content do not depend on this order.
class StudyQueue {
 public:
  StudyQueue(const StudySpec& spec, int num_ranks);
  struct Pick {
    size_t batch = 0;  ///< Index into spec.batches.
    int64_t id = 0;
  };
  /// The team size of the current phase, which advances where all its batch sizes are done; none when every batch size is done.
  std::optional<int> phase();
  std::optional<Pick> next();
  void lost(const Pick& pick);
  void ended(size_t batch, TrialSummary summary);
  BatchQueue& batch(size_t index) { return *batches_[index]; }
  const BatchQueue& batch(size_t index) const { return *batches_[index]; }
  size_t num_batches() const { return batches_.size(); }
  const CensorRule& rule() const { return rule_; }

  /// Costs are in sample updates; each step has an overhead of this many samples. Used for the order and the time left only.
  static constexpr int64_t kStepOverheadSamples = 50;
  /// The cost of `steps` steps, and the estimated cost of all remaining work.
  double cost(size_t batch, int64_t steps) const;
  double cost_left() const;

 private:
  double cost_left(size_t batch) const;

  StudySpec spec_;
  CensorRule rule_;
  std::vector<std::unique_ptr<BatchQueue>> batches_;
  std::vector<int> teams_;                      ///< Team size of each batch size.
  std::vector<int> running_;                    ///< Running trials of each batch size.
  double ended_steps_ = 0, ended_budgets_ = 0;  ///< Sums over ended trials, for the mean share of the budget that a trial uses.
};

}  // namespace cohort::study

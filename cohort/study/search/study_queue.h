#pragma once
// All batch sizes of a study: in which phase each is trained, and which one the next free worker gets. Torch-free; one thread.

#include <memory>
#include <optional>
#include <vector>

#include "cohort/study/search/batch_queue.h"

namespace cohort::study {

/// How many ranks train a batch of this size together: enough that none has more than spec.max_batch_per_worker, as far as there are.
int team_size(const StudySpec& spec, int64_t batch_size, int num_ranks);

/// Batch sizes with equal teams are one phase; phases go by rising teams. Inside a phase a free team gets the batch size on which the
/// fewest teams work, because trials one after the other censor better than trials side by side; ties to the one with most work left, so
/// that all end together. Which trials are stored, and with what, does not depend on it.
class StudyQueue {
 public:
  StudyQueue(const StudySpec& spec, int num_ranks);
  struct Pick {
    size_t batch = 0;  ///< Index into spec.batches.
    int64_t id = 0;
  };
  /// The team of the current phase, or none when every batch size is done. Goes on to the next phase where this one is done.
  std::optional<int> phase();
  std::optional<Pick> next();
  void lost(const Pick& pick);
  void ended(size_t batch, TrialSummary summary);
  BatchQueue& batch(size_t index) { return *batches_[index]; }
  const BatchQueue& batch(size_t index) const { return *batches_[index]; }
  size_t num_batches() const { return batches_.size(); }
  const CensorRule& rule() const { return rule_; }

  /// A trial's cost in "sample updates": a step costs as much as that number of samples more than it has. For order and time left only.
  static constexpr int64_t kStepOverheadSamples = 50;
  /// Of work that was done (for the time left), and of what is still to do, as far as one can tell.
  double cost(size_t batch, int64_t steps) const;
  double cost_left() const;

 private:
  double cost_left(size_t batch) const;

  StudySpec spec_;
  CensorRule rule_;
  std::vector<std::unique_ptr<BatchQueue>> batches_;
  std::vector<int> teams_;                      ///< By batch.
  std::vector<int> running_;                    ///< Trials by batch.
  double ended_steps_ = 0, ended_budgets_ = 0;  ///< Of trials that ended: how much of its budget a trial uses.
};

}  // namespace cohort::study

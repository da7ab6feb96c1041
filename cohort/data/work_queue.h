#pragma once
// Divides the work of a training into work items (step, share) for idle workers. Independent of clocks, processes and gradients.
// Torch-free.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/sampler.h"

namespace cohort {

struct WorkItem {
  int64_t step = 0;  ///< Of the sampler, from 0; the first one of several.
  int share = 0;
  Share positions;             ///< In the global batch of that step, not empty. Several steps: from 0 to their total.
  int64_t global_samples = 0;  ///< Of the whole step; the mean over several steps.
  int64_t num_samples() const { return positions.size(); }
  /// Fraction of its step, or the sum over several steps.
  double weight() const { return static_cast<double>(num_samples()) / static_cast<double>(global_samples); }
};

struct WorkQueueOptions {
  int64_t num_samples = 1;   ///< Size of the data set.
  int64_t global_batch = 1;  ///< Samples per step.
  int num_shares = 1;        ///< Shares per step, see share_of_rank().
  int64_t granularity = 1;
  int64_t first_step = 0;
  int64_t end_step = 0;     ///< Exclusive.
  int64_t steps = 1;        ///< Consecutive steps per work item.
  bool own_shares = false;  ///< Prefer the worker's own share of the oldest open step.
};

/// Issues work items in the order of steps and shares; lost ones are issued again. Each is finished exactly once, so each sample is used
/// once per epoch at any speeds and despite failures. One thread.
class WorkQueue {
 public:
  /// Error(kBadInput) for invalid options, see Sampler and share_of_rank().
  explicit WorkQueue(const WorkQueueOptions& options);

  /// Issues the next work item to `worker`. Nullopt if there is none, or if its step is more than `staleness_bound` steps (-1: unlimited)
  /// after first_unfinished_step().
  std::optional<WorkItem> take(int worker, int64_t staleness_bound = -1);
  /// Whether take() would issue one.
  bool has_next(int64_t staleness_bound = -1) const;
  /// Marks an open work item as finished.
  void finish(const WorkItem& item);
  /// Returns an open work item, to be issued again.
  void give_back(const WorkItem& item);
  /// Returns all open work items of `worker`; the result is their number.
  int64_t lose(int worker);
  /// Returns all open work items.
  void give_all_back();

  bool all_finished() const { return open_.empty() && returned_.empty() && next_step_ >= options_.end_step; }
  int64_t num_open() const { return static_cast<int64_t>(open_.size()); }
  /// The first step with unfinished work items.
  int64_t first_unfinished_step() const;
  /// Samples of finished work items and of steps before first_step.
  int64_t samples_done() const { return samples_done_; }
  /// The number of whole steps of samples_done(); the last step of an epoch may be smaller.
  int64_t steps_done() const;
  WorkItem item_at(int64_t step, int share) const;
  /// The single-step work items of a work item, without empty ones.
  std::vector<WorkItem> steps_of(int64_t step, int share) const;

  Json state() const;
  /// Loads a state() with the same options. Error(kBadInput) beginning with `where` for an invalid one.
  void load(const Json& state, const std::string& where);

 private:
  using Key = std::pair<int64_t, int>;  // Step and share.
  WorkItem single(int64_t step, int share) const;
  void advance();
  int num_items_at(int64_t step) const;

  WorkQueueOptions options_;
  Sampler sampler_;  // For sizes only.
  Key next() const { return {next_step_, next_share_}; }
  int64_t next_step_, samples_done_ = 0;
  int next_share_ = 0;
  std::map<Key, int> open_;  // Their workers.
  std::set<Key> returned_;
};

}  // namespace cohort

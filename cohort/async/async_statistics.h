#pragma once
// Statistics of an asynchronous training: pushes and seconds per worker, staleness, losses. Saved in checkpoints and reported at the end.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/record/async_record.h"

namespace cohort {

/// One thread.
class AsyncStatistics {
 public:
  explicit AsyncStatistics(int num_workers);

  /// Adds the worker if it is new.
  AsyncRecord::Worker& worker(int index);
  int num_workers() const { return static_cast<int>(workers_.size()); }
  void add_push(int worker, const WorkItem& item, const PushOutcome& outcome);
  void add_bytes(int64_t to_workers, int64_t to_server);
  /// Adds the seconds of `more`.
  void add_seconds(int worker, const AsyncRecord::Worker& more);
  std::string pushes_text(int worker);  ///< "1,234 pushes"

  /// The caller adds the step and the settings.
  AsyncRecord record() const;

  Json state() const;
  /// Error(kBadInput) beginning with `where`.
  void load(const Json& state, const std::string& where);

 private:
  std::vector<AsyncRecord::Worker> workers_;
  std::map<int64_t, int64_t> staleness_;  // Number of pushes by staleness.
  double late_steps_ = 0, most_late_steps_ = 0;
  int64_t bytes_to_workers_ = 0, bytes_to_server_ = 0;
};

class LocalServer;

/// Applies a push that has arrived, and finishes its item.
AppliedPush apply_push(AsyncMode& mode, Assignment& push, const StepNumbers& numbers, AsyncStatistics& statistics, WorkQueue& queue);
/// Merges the pushes of a round in the order of their shares and steps, into which it sorts them, as one push of all their samples.
AppliedPush merge_pushes(LocalServer& server, std::vector<Assignment*>& pushes, AsyncStatistics& statistics, WorkQueue& queue);

}  // namespace cohort

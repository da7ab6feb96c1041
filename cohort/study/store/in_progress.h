#pragma once
// Trials as one line of JSON, for messages between ranks and for files of ended trials that are not decided. Doubles are preserved bit for
// bit; numbers that are not finite become null and are read back as NaN.

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/search/batch_queue.h"
#include "cohort/study/search/trial_runner.h"
#include "cohort/study/spec/data.h"

namespace cohort::study {

Json to_json(const Trial& trial);
Json to_json(const TrialOrder& order);
Json to_json(const TrialBound& bound);
/// Error(kBadInput) naming `what` where the JSON is not as to_json() writes it.
Trial trial_from_json(const Json& json, const std::string& what);
TrialOrder order_from_json(const Json& json, const std::string& what);
TrialBound bound_from_json(const Json& json, const std::string& what);

/// The folder DIR/in_progress, from which a killed study resumes. B_ID_BUDGET.snapshot is a running trial's state, written by its runner;
/// B_ID_BUDGET.trial is a trial that ended while a lower id still ran, so that it is not decided. Both are removed when the trial is
/// stored. Used by one thread of the rank that owns the store.
class InProgress {
 public:
  /// Creates the folder.
  explicit InProgress(const std::string& study_folder);
  /// The path of a snapshot, which depends on the budget.
  std::string snapshot(int64_t batch_size, int64_t id, int64_t train_steps) const;
  /// Writes an ended trial durably.
  void keep(int64_t batch_size, int64_t train_steps, const Trial& trial);
  Trial read(int64_t batch_size, int64_t id, int64_t train_steps) const;
  void remove(int64_t batch_size, int64_t id, int64_t train_steps);
  /// Calls `kept` for every trial file for which `wanted` is true, and removes all files for which it is false, and damaged ones with a
  /// warning.
  void restore(const std::function<bool(int64_t batch_size, int64_t id, int64_t train_steps)>& wanted,
               const std::function<void(int64_t batch_size, const Trial&)>& kept);
  /// Removes the folder and its content when the study is done.
  void remove_all();

 private:
  std::string path(int64_t batch_size, int64_t id, int64_t train_steps, const char* kind) const;
  std::string folder_;
};

}  // namespace cohort::study

#pragma once
// Trials as one line of JSON: between ranks, and in files of trials that ended but are not decided. Doubles survive bit for bit; numbers
// that are not finite become null and come back as NaN.

#include <nlohmann/json_fwd.hpp>

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
/// Error(kBadInput) naming `what` for anything that is not what to_json writes.
Trial trial_from_json(const Json& json, const std::string& what);
TrialOrder order_from_json(const Json& json, const std::string& what);
TrialBound bound_from_json(const Json& json, const std::string& what);

// DIR/in_progress: what a study that is killed goes on from. B_ID_BUDGET.snapshot is a running trial's state, written by its runner;
// B_ID_BUDGET.trial is a trial that ended while a lower id still ran, so that it is not decided. Both go when the trial is stored.

/// The rank that owns the store. One thread.
class InProgress {
 public:
  /// Makes the folder.
  explicit InProgress(const std::string& study_folder);
  /// The file that a runner saves to; a trial of another budget does not find it.
  std::string snapshot(int64_t batch_size, int64_t id, int64_t train_steps) const;
  /// Durable when it returns.
  void keep(int64_t batch_size, int64_t train_steps, const Trial& trial);
  Trial read(int64_t batch_size, int64_t id, int64_t train_steps) const;
  void remove(int64_t batch_size, int64_t id, int64_t train_steps);
  /// Every kept trial for which `wanted`; all other files are removed (but snapshots for which it is true), with a warning those that are
  /// damaged.
  void restore(const std::function<bool(int64_t batch_size, int64_t id, int64_t train_steps)>& wanted,
               const std::function<void(int64_t batch_size, const Trial&)>& kept);
  /// Removes the folder with all that is in it: the study is done.
  void remove_all();

 private:
  std::string path(int64_t batch_size, int64_t id, int64_t train_steps, const char* kind) const;
  std::string folder_;
};

}  // namespace cohort::study

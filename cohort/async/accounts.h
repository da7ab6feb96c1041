#pragma once
// Who did how much, how late pushes were, what was lost: kept while a training runs, saved with it, told at its end.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/record/async_record.h"

namespace cohort {

/// One thread.
class Accounts {
 public:
  explicit Accounts(int num_workers);

  /// Of a worker that was not there before, too.
  AsyncRecord::Worker& of(int worker);
  int num_workers() const { return static_cast<int>(workers_.size()); }
  /// A push that came.
  void push(int worker, const Ticket& ticket, const PushOutcome& outcome);
  void moved(int64_t to_workers, int64_t to_server);
  /// The seconds of `more`.
  void spent(int worker, const AsyncRecord::Worker& more);
  std::string pushes_text(int worker);  ///< "1,234 pushes"

  /// Of all so far; the caller adds what it is the record of.
  AsyncRecord record() const;

  Json state() const;
  /// Error(kBadInput) beginning with `where`.
  void load(const Json& state, const std::string& where);

 private:
  std::vector<AsyncRecord::Worker> workers_;
  std::map<int64_t, int64_t> staleness_;  // Pushes by staleness.
  double late_steps_ = 0, most_late_steps_ = 0;
  int64_t bytes_to_workers_ = 0, bytes_to_server_ = 0;
};

}  // namespace cohort

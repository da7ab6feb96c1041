#pragma once
// What searches over an instance have in common: a deadline, the best bound so far, the end. Internal to this room.

#include <string>

#include "cohort/plan/public/public_instance.h"
#include "cohort/plan/search/replicated_stages.h"

namespace cohort {

/// A base class.
class InstanceSearch {
 protected:
  /// Starts the clock; `search_seconds` from 0 to 1e6, others as the nearest of these.
  explicit InstanceSearch(double search_seconds);

  SearchClock::time_point deadline() const { return deadline_; }
  bool has_time() const { return SearchClock::now() <= deadline_; }

  /// Keeps the highest bound with the name of the relaxation that gave it; the first one in any case.
  void take_bound(double lower_bound, const char* bound_by);
  /// The answer: a bound is at most the objective, and within 1e-9 of it the plan is optimal.
  InstanceAnswer finish();

  InstanceAnswer answer_;

 private:
  SearchClock::time_point start_, deadline_;
};

}  // namespace cohort

#pragma once
// Common to the searches over an instance: a deadline, the best bound so far, the answer.

#include <algorithm>
#include <string>
#include <utility>

#include "bench/program/published/published_instances.h"
#include "bench/program/published/replicated_stages.h"

namespace cohort {

/// A base class.
class InstanceSearch {
 protected:
  /// Starts the clock; `search_seconds` from 0 to 1e6, others as the nearest of these.
  explicit InstanceSearch(double search_seconds)
      : start_(SearchClock::now()),
        deadline_(start_ +
                  std::chrono::duration_cast<SearchClock::duration>(std::chrono::duration<double>(std::clamp(search_seconds, 0.0, 1e6)))) {}

  SearchClock::time_point deadline() const { return deadline_; }
  bool has_time() const { return SearchClock::now() <= deadline_; }

  /// Keeps the highest bound with the name of the relaxation that gave it; the first one in any case.
  void take_bound(double lower_bound, const char* bound_by) {
    if (lower_bound <= answer_.lower_bound && !answer_.bound_by.empty()) return;
    answer_.lower_bound = lower_bound;
    answer_.bound_by = bound_by;
  }
  /// The answer: a bound is at most the objective, and within 1e-9 of it the plan is optimal.
  InstanceAnswer finish() {
    answer_.lower_bound = std::min(answer_.lower_bound, answer_.objective);
    answer_.optimal = answer_.objective <= answer_.lower_bound * (1 + 1e-9);
    answer_.search_seconds = std::chrono::duration<double>(SearchClock::now() - start_).count();
    return std::move(answer_);
  }

  InstanceAnswer answer_;

 private:
  SearchClock::time_point start_, deadline_;
};

}  // namespace cohort

#include "cohort/plan/public/instance_search.h"

#include <algorithm>
#include <utility>

namespace cohort {
namespace {

constexpr double kClose = 1e-9, kMostSeconds = 1e6;

}  // namespace

InstanceSearch::InstanceSearch(double search_seconds)
    : start_(SearchClock::now()),
      deadline_(start_ + std::chrono::duration_cast<SearchClock::duration>(
                             std::chrono::duration<double>(std::clamp(search_seconds, 0.0, kMostSeconds)))) {}

void InstanceSearch::take_bound(double lower_bound, const char* bound_by) {
  if (lower_bound <= answer_.lower_bound && !answer_.bound_by.empty()) return;
  answer_.lower_bound = lower_bound;
  answer_.bound_by = bound_by;
}

InstanceAnswer InstanceSearch::finish() {
  answer_.lower_bound = std::min(answer_.lower_bound, answer_.objective);
  answer_.optimal = answer_.objective <= answer_.lower_bound * (1 + kClose);
  answer_.search_seconds = std::chrono::duration<double>(SearchClock::now() - start_).count();
  return std::move(answer_);
}

}  // namespace cohort

#pragma once

#include <chrono>

namespace cohort {

/// Seconds from `start` on until now.
template <typename Clock>
double seconds_since(std::chrono::time_point<Clock> start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace cohort

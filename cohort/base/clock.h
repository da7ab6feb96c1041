#pragma once

#include <chrono>

namespace cohort {

/// Seconds from `start` on until now.
template <typename Clock>
double seconds_since(std::chrono::time_point<Clock> start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of a clock that never goes back; only differences mean something.
inline double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace cohort

#pragma once

#include <ctime>

namespace cohort {

/// Processor time used so far: unlike wall clock it leaves out what other programs of the machine take.
inline double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace cohort

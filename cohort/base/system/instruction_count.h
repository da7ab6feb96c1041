#pragma once
// Instructions that this thread executes in user mode, counted by the CPU (perf_event_open(2)).

#include <cstdint>
#include <optional>

#include "cohort/base/files/file.h"

namespace cohort {

/// Of the thread that makes it. Virtual machines often have no such counter, and kernel.perf_event_paranoid above 2 forbids it.
class InstructionCount {
 public:
  InstructionCount();
  /// Since it was made; none where there is no counter.
  std::optional<int64_t> read() const;

 private:
  UniqueDescriptor counter_;
};

}  // namespace cohort

#include "cohort/base/system/instruction_count.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cohort {
namespace {

int open_counter() {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

InstructionCount::InstructionCount() : counter_(open_counter()) {}

std::optional<int64_t> InstructionCount::read() const {
  int64_t count = 0;
  if (counter_.get() < 0 || ::read(counter_.get(), &count, sizeof count) != sizeof count) return std::nullopt;
  return count;
}

}  // namespace cohort

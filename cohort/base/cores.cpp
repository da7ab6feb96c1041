#include "cohort/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace cohort {

int num_usable_cores() {
  // The kernel refuses a set smaller than its own, and a machine may have more cores than cpu_set_t holds.
  for (size_t most = CPU_SETSIZE; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most), [](cpu_set_t* given) { CPU_FREE(given); });
    if (!set) break;
    if (::sched_getaffinity(0, CPU_ALLOC_SIZE(most), set.get()) == 0) return std::max(1, CPU_COUNT_S(CPU_ALLOC_SIZE(most), set.get()));
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace cohort

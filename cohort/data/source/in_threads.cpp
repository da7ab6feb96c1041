#include "cohort/data/source/in_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace cohort {

void in_threads(int num_threads, int64_t count, const std::function<void(int64_t i)>& work) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::atomic<int64_t> failed_at = count;
  std::exception_ptr failure;
  const auto run = [&] {
    for (int64_t i = next++; i < failed_at; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i > failed_at) continue;
        failed_at = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t thread = 1; thread < std::min<int64_t>(num_threads, count); ++thread) others.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace cohort

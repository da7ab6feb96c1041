#pragma once
// For tests: results that depend neither on the number of threads nor on which thread rank draws first.

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <mutex>

namespace cohort {

/// Kernels divide sums by threads, and one is the fastest for sizes of tests. A test program that includes this starts with one;
/// ranks as threads (thread_ranks.h) have one each.
inline const bool kOneThread = (at::set_num_threads(1), true);

/// Seeds LibTorch's generator, which thread ranks share; while it lives, no other thread gets one.
class SeededDraws {
 public:
  explicit SeededDraws(uint64_t seed) : lock_(mutex()) { at::manual_seed(seed); }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace cohort

// Memory bandwidth. Method: STREAM (J. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", 1995), with
// processes for threads: a run lasts from a barrier until the slowest rank is through. Differences: the copy is the C library's, which
// knows the machine's best stores; two of the four kernels.
#include "cohort/comm/memory_bandwidth.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cohort/base/clock.h"

namespace cohort {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB an array: beyond the caches.
constexpr int kRuns = 5;

void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float factor) {
  constexpr int64_t kBlock = 1024;  // A fixed number of turns is what the compiler makes vector code of.
  static_assert(kElements % kBlock == 0);
  for (int64_t at = 0; at < kElements; at += kBlock)
    for (int64_t i = 0; i < kBlock; ++i) a[at + i] = b[at + i] + factor * c[at + i];
}

/// Seconds of the slowest rank.
double slowest(Group& group, double mine) {
  if (group.size() == 1) return mine;
  at::Tensor one = at::empty({1}, at::kDouble), all = at::empty({group.size(), 1}, at::kDouble);
  one.data_ptr<double>()[0] = mine;
  group.all_gather(all, one, "seconds of a memory test");
  return *std::max_element(all.data_ptr<double>(), all.data_ptr<double>() + group.size());
}

}  // namespace

double memory_bandwidth(Group& group) {
  std::vector<float> a(kElements, 0.0f), b(kElements, 1.0f), c(kElements, 2.0f);
  const double bytes = static_cast<double>(kElements * sizeof(float)) * group.size();
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    group.barrier();
    auto start = std::chrono::steady_clock::now();
    std::memcpy(a.data(), b.data(), kElements * sizeof(float));
    best = std::max(best, 2 * bytes / slowest(group, seconds_since(start)));
    group.barrier();
    start = std::chrono::steady_clock::now();
    triad(a.data(), b.data(), c.data(), static_cast<float>(run));
    best = std::max(best, 3 * bytes / slowest(group, seconds_since(start)));
    std::swap(a, b);  // Data that changes, and results that are used.
  }
  return best;
}

}  // namespace cohort

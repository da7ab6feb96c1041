#include "cohort/comm/link.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/statistics.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds of each of `times` sums over the ranks.
std::vector<double> time_sums(Group& group, const at::Tensor& buffer, int64_t count, int times) {
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    group.barrier();
    const auto start = Clock::now();
    group.all_reduce_sum(buffer.narrow(0, 0, count), "the speed of the link");
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

}  // namespace

LinkEstimate measure_link(Group& group, double budget_seconds) {
  constexpr int64_t kSmallest = 4 * 1024, kLargest = 1024 * 1024;  // Elements.
  constexpr double kLongEnough = 0.08;
  if (group.size() == 1) return {};
  const auto start = Clock::now();
  at::Tensor buffer = group.allocate(kLargest, at::TensorOptions(at::kFloat));
  at::Tensor numbers = at::empty({2}, at::kDouble);  // Rank 0's: seconds, and whether to continue.
  double* const out = numbers.data_ptr<double>();
  time_sums(group, buffer, 1, 2);  // Warms up connections and pages.
  const double latency = median(time_sums(group, buffer, 1, 7));
  int64_t count = kSmallest;
  for (;; count *= 2) {
    out[0] = time_sums(group, buffer, count, 1).front();
    out[1] = count < kLargest && out[0] < kLongEnough && seconds_since(start) < budget_seconds;
    group.broadcast(numbers, 0, "the speed of the link");
    if (out[1] == 0) break;
  }
  out[0] = median(time_sums(group, buffer, count, 3));
  out[1] = latency;
  group.broadcast(numbers, 0, "the speed of the link");
  const int64_t slice = (count + group.size() - 1) / group.size();
  const double sent_bytes = static_cast<double>(2 * (group.size() - 1) * slice * static_cast<int64_t>(sizeof(float)));
  return {out[1], sent_bytes / std::max(out[0] - out[1], out[0] / 2)};
}

// Memory bandwidth. Method: STREAM (J. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", 1995), with
// processes for threads: a run lasts from a barrier until the slowest rank is through. Differences: the copy is the C library's, which
// knows the machine's best stores; two of the four kernels.

namespace {

constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB an array: beyond the caches.
constexpr int kRuns = 5;

void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float factor) {
  constexpr int64_t kBlock = 1024;  // A fixed trip count lets the compiler vectorise.
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
    std::swap(a, b);  // The data changes and the results are used.
  }
  return best;
}

}  // namespace cohort

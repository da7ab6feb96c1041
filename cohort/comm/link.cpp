#include "cohort/comm/link.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
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
  at::Tensor numbers = at::empty({2}, at::kDouble);  // Of rank 0: seconds, and whether to go on.
  double* const out = numbers.data_ptr<double>();
  time_sums(group, buffer, 1, 2);  // Connections and pages come first.
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

}  // namespace cohort

// The machine that a model is measured on, by all ranks at once.
//
//   links       all-reduce, reduce-scatter and all-gather at 4 KiB and 4 MiB, the median of nine after two, which gives latency and rate as
//               exchange_seconds() has them; a hand-over likewise
//   memory      the rate of w += g, three arrays of 16 MiB
//   rates       a product of two matrices of 512 x 512 in each precision
//
// Cost: about a hundred exchanges, tenths of a second.

#include "cohort/tune/measure_machine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/comm/tensor_channels.h"

namespace cohort {
namespace {

constexpr int64_t kSmallBytes = 4 << 10, kLargeBytes = 4 << 20;

/// Seconds of one call among all ranks: the median of nine after two that warm up.
double exchange_time(Group& group, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    group.barrier();
    const double start = steady_seconds();
    call();
    const double time = steady_seconds() - start;
    if (i >= 2) times.push_back(time);
  }
  return median(times);
}

/// Latency and rate of what takes `latency_times` x latency + `byte_times` x bytes / rate.
Link link_of(double small, double large, double latency_times, double byte_times) {
  Link link;
  const double a_byte = std::max(1e-12, (large - small) / static_cast<double>(kLargeBytes - kSmallBytes));
  link.bytes_per_second = byte_times / a_byte;
  link.latency_seconds = std::max(0.0, small - a_byte * static_cast<double>(kSmallBytes)) / latency_times;
  return link;
}

/// Half of a round trip between the first two ranks.
Link measure_hand_over(Group& group) {
  TensorChannels channels(group);
  std::array<double, 2> seconds{};
  for (const int large : {0, 1}) {
    const at::Tensor mine = at::zeros({large ? kLargeBytes : kSmallBytes}, at::kByte);
    seconds[static_cast<size_t>(large)] = 0.5 * exchange_time(group, [&] {
                                            if (group.rank() > 1) return;
                                            if (group.rank() == 0) channels.send(1, {mine}, "a measurement");
                                            channels.receive(1 - group.rank(), "a measurement");
                                            if (group.rank() == 1) channels.send(0, {mine}, "a measurement");
                                          });
    channels.flush();
  }
  return link_of(seconds[0], seconds[1], 1, 1);
}

Links measure_links(Group& group) {
  const int n = group.size();
  Links links;
  for (Link& link : links.by_exchange) link = {1e-6, 0, 1e10};
  if (n == 1) return links;
  const double doublings = std::log2(n), share = (n - 1.0) / n;
  std::map<Exchange, std::array<double, 2>> seconds;
  for (const int large : {0, 1}) {
    const int64_t count = (large ? kLargeBytes : kSmallBytes) / 4 / n * n;
    at::Tensor whole = group.allocate(count, at::kFloat), part = at::zeros({count / n}, at::kFloat);
    seconds[Exchange::kAllReduce][large] = exchange_time(group, [&] { group.all_reduce_sum(whole, "a measurement"); });
    seconds[Exchange::kReduceScatter][large] =
        exchange_time(group, [&] { group.start_reduce_scatter_sum(part, whole, "a measurement")->wait(); });
    seconds[Exchange::kAllGather][large] = exchange_time(group, [&] { group.start_all_gather(whole, part, "a measurement")->wait(); });
  }
  for (const auto& [kind, both] : seconds)
    links.by_exchange[static_cast<size_t>(kind)] = link_of(both[0], both[1], doublings, kind == Exchange::kAllReduce ? 2 * share : share);
  links.by_exchange[static_cast<size_t>(Exchange::kHandOver)] = measure_hand_over(group);
  return links;
}

}  // namespace

Cluster measure_machine(Group& group, const MachineToMeasure& what) {
  Cluster cluster;
  cluster.name = concat("this machine, ", group.size(), group.size() == 1 ? " worker" : " workers");
  cluster.source = "measured by cohort";
  // Of the first forecasts that were held against trainings (bench/forecast_layouts.py) 90 % were off by less than a quarter.
  cluster.forecast_low = 0.8, cluster.forecast_high = 1.25;
  cluster.inside = cluster.across = measure_links(group);
  cluster.shared_memory = group.backend_name() == "shm";
  cluster.hosts = {{1, group.size(), 0}};
  DeviceKind& device = cluster.devices.emplace_back();
  device.name = what.device;
  device.source =
      concat(at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads", " beside ", group.size() - 1, " other ranks");
  device.memory_bytes = available_memory_bytes() / group.size();
  device.allocator_overhead = 0.03;  // Small blocks that no layer explains; bench/ladder.py holds forecasts against --memory-limit.
  device.reserved_bytes = std::min(what.reserved_bytes, device.memory_bytes / 2);
  at::Tensor weights = at::zeros({kLargeBytes}, at::kFloat), gradients = at::ones({kLargeBytes}, at::kFloat);
  device.memory_bytes_per_second = 3.0 * 4 * kLargeBytes / exchange_time(group, [&] { weights.add_(gradients, -0.1); });
  constexpr int64_t kSide = 512;
  for (const std::string& precision : what.precisions) {
    const at::ScalarType type = precision == "fp32" ? at::kFloat : precision == "bf16" ? at::kBFloat16 : at::kHalf;
    const at::Tensor square = at::ones({kSide, kSide}, type);
    device.rates.push_back({precision, 2.0 * kSide * kSide * kSide / exchange_time(group, [&] { at::mm(square, square); })});
  }
  return cluster;
}

}  // namespace cohort

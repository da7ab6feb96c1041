#include "cohort/train/advice/exchange_advice.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/link.h"

namespace cohort {
namespace {

/// The least seconds of a few calls after the first, which touches new memory; other programs may disturb one.
double time_compressor(Compressor& compressor, const at::Tensor& gradients) {
  using Clock = std::chrono::steady_clock;
  Group alone;
  double least = 0;
  for (int call = 0; call < 4; ++call) {
    at::Tensor flat = gradients.clone();
    const auto start = Clock::now();
    compressor.all_reduce_sum(alone, flat, "made-up gradients");
    const double seconds = seconds_since(start);
    if (call == 1 || (call > 1 && seconds < least)) least = seconds;
  }
  return least;
}

at::Tensor made_up_gradients(int64_t count) {
  at::Tensor out = at::empty({count}, at::kFloat);
  float* const values = out.data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {  // A bell shape: the sum of four uniform numbers.
    const uint64_t bits = mix64(static_cast<uint64_t>(i));
    const auto part = [&](int shift) { return static_cast<float>((bits >> shift) & 0xffff) * 0x1p-16f - 0.5f; };
    values[i] = 0.01f * (part(0) + part(16) + part(32) + part(48));
  }
  return out;
}

}  // namespace

std::vector<GradientBucket> gradient_buckets(const std::vector<std::vector<int64_t>>& shapes, int64_t bucket_bytes) {
  std::vector<GradientBucket> buckets;
  for (const std::vector<int64_t>& shape : shapes) {
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    const int64_t full = bucket_bytes / static_cast<int64_t>(sizeof(float));
    if (buckets.empty() || buckets.back().num_elements + count > full) buckets.push_back({{.name = concat("bucket ", buckets.size())}, 0});
    GradientBucket& bucket = buckets.back();
    bucket.buffer.parts.push_back({bucket.num_elements, shape});
    bucket.num_elements += count;
  }
  return buckets;
}

std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks, const std::string& in_use) {
  constexpr int64_t kMeasuredElements = 8 << 20;
  int64_t num_elements = 0, largest = 0;
  for (const GradientBucket& bucket : buckets) {
    num_elements += bucket.num_elements;
    largest = std::max(largest, bucket.num_elements);
  }
  const at::Tensor gradients = made_up_gradients(largest);
  std::vector<CompressionCost> costs;
  std::vector<std::string> specs = {"none", "fp16", "bf16", "int8", "topk:0.01", "powersgd:4"};
  if (std::find(specs.begin(), specs.end(), in_use) == specs.end()) specs.push_back(in_use);
  for (const std::string& spec : specs) {
    CompressionCost cost{spec};
    int64_t measured = 0;
    for (const GradientBucket& bucket : buckets) {
      const auto compressor = make_compressor(spec, bucket.buffer, bucket.num_elements, 1);
      const ExchangeCost exchange = compressor ? compressor->cost(num_ranks) : uncompressed_cost(bucket.num_elements, num_ranks);
      cost.exchange.sent_bytes += exchange.sent_bytes;
      cost.exchange.num_exchanges += exchange.num_exchanges;
      if (!compressor || measured >= kMeasuredElements) continue;
      cost.compress_seconds += time_compressor(*compressor, gradients.narrow(0, 0, bucket.num_elements));
      measured += bucket.num_elements;
    }
    if (measured > 0) cost.compress_seconds *= static_cast<double>(num_elements) / static_cast<double>(measured);
    costs.push_back(std::move(cost));
  }
  return costs;
}

AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets,
                            const std::optional<LinkEstimate>& measured_link) {
  const LinkEstimate link = measured_link ? *measured_link : measure_link(group);
  std::vector<CompressionCost> costs = measure_compression(buckets, group.size(), step.compress);
  if (group.size() > 1) {
    const int64_t columns = static_cast<int64_t>(costs.size()) + 2;
    at::Tensor mine = at::empty({columns}, at::kDouble), all = at::empty({group.size(), columns}, at::kDouble);
    double* const numbers = mine.data_ptr<double>();
    numbers[0] = step.step_seconds, numbers[1] = step.exposed_seconds;
    for (size_t i = 0; i < costs.size(); ++i) numbers[2 + i] = costs[i].compress_seconds;
    group.all_gather(all, mine, "the cost of compression");
    const double* const rows = all.data_ptr<double>();
    step.step_seconds = rows[0], step.exposed_seconds = rows[1];
    for (int rank = 0; rank < group.size(); ++rank)
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i].compress_seconds = std::max(costs[i].compress_seconds, rows[rank * columns + 2 + static_cast<int64_t>(i)]);
  }
  return advise(step, link, costs);
}

}  // namespace cohort

#include "cohort/train/measured/exchange_advice.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kWorthwhile = 0.95;  // Of the step now: less gain than this is not worth any loss.

/// Whether it rounds every gradient a little, rather than leaving most of them for later steps.
bool is_mild(const std::string& compress) { return compress == "fp16" || compress == "bf16" || compress == "int8"; }

std::string human_bits(double bytes_per_second) {
  const double megabits = bytes_per_second * 8e-6;
  const bool giga = megabits >= 1000;
  const double value = giga ? megabits / 1000 : megabits;
  return concat(value < 9.95 ? std::round(value * 10) / 10 : std::round(value), giga ? " Gbit/s" : " Mbit/s");
}

const AdviceRecord::Row* best_of(const std::vector<AdviceRecord::Row>& rows, bool mild) {
  const AdviceRecord::Row* best = nullptr;
  for (const AdviceRecord::Row& row : rows) {
    if (row.compress == "none" || is_mild(row.compress) != mild) continue;
    if (!best || row.predicted_step_seconds < best->predicted_step_seconds) best = &row;
  }
  return best;
}

std::string sentence_for(const StepMeasurement& step, const LinkEstimate& link, const std::vector<AdviceRecord::Row>& rows) {
  const AdviceRecord::Row *mild = best_of(rows, true), *strong = best_of(rows, false);
  const auto better = [](const AdviceRecord::Row* row, double than) { return row && row->predicted_step_seconds < kWorthwhile * than; };
  const auto seconds = [](const AdviceRecord::Row* row) { return human_seconds(row->predicted_step_seconds); };
  const std::string place = concat(" would pay on this link (", human_bits(link.bytes_per_second), "): predicted step ");
  const std::string now = concat(" against ", human_seconds(step.step_seconds), " now"), loss = ", at some loss of convergence speed";
  if (link.bytes_per_second <= 0) return "compression does not pay here: one rank exchanges nothing";
  if (better(mild, step.step_seconds)) {
    const bool both = better(strong, mild->predicted_step_seconds);
    return concat("compress=", mild->compress, place, seconds(mild), now,
                  both ? concat("; ", strong->compress, " ", seconds(strong), loss) : "");
  }
  if (better(strong, step.step_seconds)) return concat("compress=", strong->compress, place, seconds(strong), now, loss);
  const AdviceRecord::Row* least = mild ? mild : strong;
  return concat("compression does not pay here: the exchange shows for ", human_seconds(step.exposed_seconds), " of ",
                human_seconds(step.step_seconds),
                least ? concat(", and compressing ", human_bytes(rows.front().sent_bytes), " to ", human_bytes(least->sent_bytes), " with ",
                               least->compress, " alone would take ", human_seconds(least->compress_seconds))
                      : "");
}

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

AdviceRecord advise(const StepMeasurement& step, const LinkEstimate& link, const std::vector<CompressionCost>& costs) {
  if (costs.empty() || costs.front().compress != "none") fail(ErrorCode::kBadInput, "advice on compression: the first row must be none");
  const auto on_link = [&](const CompressionCost& cost) { return link.seconds(cost.exchange.sent_bytes, cost.exchange.num_exchanges); };
  const double uncompressed = on_link(costs.front());
  const double hidden = std::max(0.0, uncompressed - step.exposed_seconds), waiting = std::max(0.0, step.exposed_seconds - uncompressed);
  AdviceRecord advice;
  for (const CompressionCost& cost : costs)
    advice.rows.push_back(
        {cost.compress, step.step_seconds - step.exposed_seconds + waiting + cost.compress_seconds + std::max(0.0, on_link(cost) - hidden),
         cost.exchange.sent_bytes, cost.compress_seconds});
  advice.sentence = sentence_for(step, link, advice.rows);
  return advice;
}

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

std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks) {
  constexpr int64_t kMeasuredElements = 8 << 20;
  int64_t num_elements = 0, largest = 0;
  for (const GradientBucket& bucket : buckets) {
    num_elements += bucket.num_elements;
    largest = std::max(largest, bucket.num_elements);
  }
  const at::Tensor gradients = made_up_gradients(largest);
  std::vector<CompressionCost> costs;
  for (const char* spec : {"none", "fp16", "bf16", "int8", "topk:0.01", "powersgd:4"}) {
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

AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets) {
  const LinkEstimate link = measure_link(group);
  std::vector<CompressionCost> costs = measure_compression(buckets, group.size());
  if (group.size() > 1) {
    const int64_t columns = static_cast<int64_t>(costs.size()) + 2;
    at::Tensor mine = at::empty({columns}, at::kDouble), all = at::empty({group.size(), columns}, at::kDouble);
    double* const numbers = mine.data_ptr<double>();
    numbers[0] = step.step_seconds, numbers[1] = step.exposed_seconds;
    for (size_t i = 0; i < costs.size(); ++i) numbers[2 + i] = costs[i].compress_seconds;
    group.all_gather(all, mine, "the cost of compression");
    const double* const rows = all.data_ptr<double>();
    step = {rows[0], rows[1]};
    for (int rank = 0; rank < group.size(); ++rank)
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i].compress_seconds = std::max(costs[i].compress_seconds, rows[rank * columns + 2 + static_cast<int64_t>(i)]);
  }
  return advise(step, link, costs);
}

}  // namespace cohort

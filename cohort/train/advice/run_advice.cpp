// Waiting of ranks of unequal speed. Each rank adds up its seconds of computing, of exposed exchange and of whole steps, for the first and
// for the present shares; the first step of a process, which allocates, is not counted. At the end the totals are gathered once (80 bytes
// a rank).
//
//   measured    rank r waited e_r - min e beyond the exchange itself; divided by the sum of all ranks' step seconds
//   predicted   from c_r seconds a sample: with equal shares rank r computes c_r B / p, a step takes max c B / p plus its other work, and
//               rank r waits (max c - c_r) B / p of it
//
// The prediction comes from steps with other shares; a run that had equal shares too can be compared with it. c includes the fixed costs of
// a step, so a rank with a small share seems slower than it is.
//
// The conditions for advise_sync() come from the same kind of sums, and the cost of compression from timing each compressor on synthetic
// gradients (one all-gather of their seconds).
#include "cohort/train/advice/run_advice.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/link.h"
#include "cohort/plan/explain.h"
#include "cohort/train/advice/balance.h"

namespace cohort {
namespace {

constexpr int64_t kLeastPushes = 4;  // A worker with fewer came late or was lost early.

constexpr double ShareTimes::* kFields[] = {&ShareTimes::steps, &ShareTimes::samples, &ShareTimes::compute_seconds,
                                            &ShareTimes::exchange_seconds, &ShareTimes::step_seconds};

/// The fields of every rank's struct, in rank order. Collective.
template <typename Times, typename Fields>
std::vector<Times> gather_fields(Group& group, const Times& mine, const Fields& fields, const char* what) {
  std::vector<Times> all(static_cast<size_t>(group.size()));
  for (const auto field : fields) {
    const std::vector<double> of_ranks = gather_numbers(group, mine.*field, what);
    for (size_t rank = 0; rank < all.size(); ++rank) all[rank].*field = of_ranks[rank];
  }
  return all;
}

double sum(const std::vector<ShareTimes>& ranks, double ShareTimes::* field) {
  double total = 0;
  for (const ShareTimes& rank : ranks) total += rank.*field;
  return total;
}

double mean_step(const std::vector<ShareTimes>& ranks) {
  const double steps = sum(ranks, &ShareTimes::steps);
  return steps > 0 ? sum(ranks, &ShareTimes::step_seconds) / steps : kUnknown;
}

std::string sentence_of(const WasteRecord& record, bool has_equal_now) {
  const auto times = [&](size_t rank) {
    const double fastest = *std::min_element(record.seconds_per_sample.begin(), record.seconds_per_sample.end());
    return std::round(10 * record.seconds_per_sample[rank] / fastest) / 10;
  };
  const std::string slow = concat("rank ", record.slowest_rank, " takes ", times(static_cast<size_t>(record.slowest_rank)),
                                  " times as long for a sample as the fastest");
  if (has_equal_now)
    return concat(
        slow, ": with equal shares ", percent(record.measured_waste), " of the workers' time went into waiting for it (",
        std::isfinite(record.predicted_equal_waste) ? percent(record.predicted_equal_waste) + " predicted from the speeds" : "measured",
        name_settings("); --shares auto, or --layout auto, gives it less"));
  std::string equal = concat("equal shares would waste ", percent(record.predicted_equal_waste), " (predicted)");
  if (std::isfinite(record.measured_equal_waste)) equal += concat(", ", percent(record.measured_equal_waste), " measured");
  return concat(slow, "; ", equal, "; with these shares ", percent(record.measured_waste), " of the workers' time went into waiting");
}

/// The least seconds of a few calls after the first one, which touches new memory.
double time_compressor(Compressor& compressor, const at::Tensor& gradients) {
  using Clock = std::chrono::steady_clock;
  Group alone;
  double least = 0;
  for (int call = 0; call < 4; ++call) {
    at::Tensor flat = gradients.clone();
    const auto start = Clock::now();
    compressor.all_reduce_sum(alone, flat, "synthetic gradients");
    const double seconds = seconds_since(start);
    if (call == 1 || (call > 1 && seconds < least)) least = seconds;
  }
  return least;
}

at::Tensor synthetic_gradients(int64_t count) {
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

double measured_waste(const std::vector<ShareTimes>& ranks) {
  double least = ranks.front().exchange_seconds, all = 0;
  for (const ShareTimes& rank : ranks) least = std::min(least, rank.exchange_seconds), all += rank.step_seconds;
  const double waited = sum(ranks, &ShareTimes::exchange_seconds) - least * static_cast<double>(ranks.size());
  return all > 0 ? waited / all : kUnknown;
}

PlannedWaste waste_of_equal_shares(const std::vector<ShareTimes>& ranks, double global_batch) {
  const auto p = static_cast<double>(ranks.size());
  std::vector<double> computes;
  double most = 0, besides = kUnknown;
  for (const ShareTimes& rank : ranks) {
    if (!(rank.samples > 0) || !(rank.steps > 0)) return {};
    const double compute = rank.compute_seconds / rank.samples * global_batch / p;
    computes.push_back(compute), most = std::max(most, compute);
    const double rest = (rank.step_seconds - rank.compute_seconds) / rank.steps;
    besides = std::isfinite(besides) ? std::min(besides, rest) : rest;
  }
  const double step = most + std::max(0.0, besides);
  if (!(step > 0)) return {};
  return {.waste = waiting_share(computes, step), .step_seconds = step};
}

void ShareWaste::add_step(const StepRecord& step, int64_t samples) {
  if (next_from_ >= 0 && step.step >= next_from_) {
    if (num_changes_++ == 0) first_ = last_;
    last_ = {};
    next_from_ = -1;
  }
  if (num_seen_++ == 0) return;
  last_.steps += 1;
  last_.samples += static_cast<double>(samples);
  last_.compute_seconds += step.compute_seconds;
  last_.exchange_seconds += step.exchange_seconds;
  last_.step_seconds += step.step_seconds;
}

std::optional<WasteRecord> ShareWaste::summary(Group& group, int64_t global_batch, const PlannedWaste& planned) const {
  const bool changed = num_changes_ > 0;
  const std::vector<ShareTimes> now = gather_fields(group, last_, kFields, "the ranks' waiting");
  const std::vector<ShareTimes> first = gather_fields(group, changed ? first_ : last_, kFields, "the ranks' waiting");
  return describe_waste(now, starts_equal_ ? first : std::vector<ShareTimes>(), changed || !starts_equal_, global_batch, planned);
}

std::optional<WasteRecord> describe_waste(const std::vector<ShareTimes>& now, const std::vector<ShareTimes>& equal, bool changed,
                                          int64_t global_batch, const PlannedWaste& planned) {
  const PlannedWaste from_speeds = waste_of_equal_shares(now, static_cast<double>(global_batch));
  if (!std::isfinite(from_speeds.waste)) return std::nullopt;
  if (!changed && from_speeds.waste < ShareWaste::kMinReportedWaste) return std::nullopt;
  const double samples = sum(now, &ShareTimes::samples);
  WasteRecord record{.measured_waste = measured_waste(now), .measured_step_seconds = mean_step(now)};
  for (const ShareTimes& rank : now) {
    record.shares.push_back(rank.samples / samples);
    record.seconds_per_sample.push_back(rank.compute_seconds / rank.samples);
  }
  record.slowest_rank =
      std::max_element(record.seconds_per_sample.begin(), record.seconds_per_sample.end()) - record.seconds_per_sample.begin();
  const PlannedWaste& predicted = std::isfinite(planned.waste) ? planned : from_speeds;
  record.predicted_equal_waste = predicted.waste, record.predicted_equal_step_seconds = predicted.step_seconds;
  if (!equal.empty() && sum(equal, &ShareTimes::steps) > 0)
    record.measured_equal_waste = measured_waste(equal), record.measured_equal_step_seconds = mean_step(equal);
  record.sentence = sentence_of(record, !changed);
  return record;
}

std::optional<SyncConditions> conditions_of_ranks(Group& group, const std::vector<double>& own_seconds, const LinkEstimate& link) {
  const ComputeTimes mine = compute_times(own_seconds);
  const auto fields = {&ComputeTimes::median_seconds, &ComputeTimes::all_seconds, &ComputeTimes::num_pauses, &ComputeTimes::pause_seconds};
  const std::vector<ComputeTimes> ranks = gather_fields(group, mine, fields, "the ranks' computing");
  const bool all_computed = std::all_of(ranks.begin(), ranks.end(), [](const ComputeTimes& its) { return its.median_seconds > 0; });
  if (own_seconds.size() < kLeastStepsOfAdvice || !all_computed) return std::nullopt;
  return SyncConditions{.clock = clock_of(ranks, link), .work_item_seconds = kWorkItemSeconds};
}

std::optional<SyncConditions> conditions_of_workers(const AsyncRecord& record, double samples_per_item) {
  SyncConditions conditions;
  if (!record.clock.empty()) {
    conditions.clock = parse_virtual(record.clock);
    if (conditions.clock.mtbf_seconds > 0) return std::nullopt;
    return conditions;
  }
  conditions.work_item_seconds = kWorkItemSeconds;
  std::vector<ComputeTimes> workers;
  double moving = 0;
  for (const AsyncRecord::Worker& worker : record.workers) {
    moving += worker.moving_seconds;
    if (worker.pushes < kLeastPushes || !(worker.computing_seconds > 0)) continue;
    const double seconds = worker.computing_seconds / static_cast<double>(worker.samples) * samples_per_item;
    workers.push_back({.median_seconds = seconds, .all_seconds = worker.computing_seconds});
  }
  if (workers.size() < 2 || record.pushes < static_cast<int64_t>(kLeastStepsOfAdvice * workers.size())) return std::nullopt;
  const auto bytes = static_cast<double>(record.bytes_to_workers + record.bytes_to_server);
  const bool has_link = moving > 0 && bytes > 0;
  conditions.clock = clock_of(workers, {.latency_seconds = 0, .bytes_per_second = has_link ? bytes / moving : 0});
  return conditions;
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

std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks, const std::string& in_use) {
  constexpr int64_t kMeasuredElements = 8 << 20;
  int64_t num_elements = 0, largest = 0;
  for (const GradientBucket& bucket : buckets) {
    num_elements += bucket.num_elements;
    largest = std::max(largest, bucket.num_elements);
  }
  const at::Tensor gradients = synthetic_gradients(largest);
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

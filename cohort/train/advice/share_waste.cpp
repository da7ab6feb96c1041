// Waiting of unequal workers.
//
// Each rank adds up, for each set of shares, its seconds of computing, of exposed exchange and of whole steps; the first step of a process
// is left out, for it allocates. At the end the ranks' totals are gathered (80 bytes a rank), once.
//
//   measured    rank r waited e_r - min e beyond the exchange itself; over the sum of all ranks' step seconds
//   predicted   c_r seconds a sample: with equal shares rank r computes c_r B / p, a step takes max c B / p + what it takes besides, and
//               rank r waits (max c - c_r) B / p of it
//
// The prediction comes from steps with other shares, so it can be held against steps with equal ones where a run had both. Fixed costs of a
// step are inside c, so a rank with a small share looks slower than it is.
#include "cohort/train/advice/share_waste.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/plan/uneven.h"
#include "cohort/train/advice/balance.h"

namespace cohort {
namespace {

constexpr double ShareTimes::* kFields[] = {&ShareTimes::steps, &ShareTimes::samples, &ShareTimes::compute_seconds,
                                            &ShareTimes::exchange_seconds, &ShareTimes::step_seconds};

std::vector<ShareTimes> gather(Group& group, const ShareTimes& mine) {
  std::vector<ShareTimes> all(static_cast<size_t>(group.size()));
  for (const auto field : kFields) {
    const std::vector<double> of_ranks = gather_numbers(group, mine.*field, "the ranks' waiting");
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

std::optional<WasteRecord> ShareWaste::tell(Group& group, int64_t global_batch, const PlannedWaste& planned) const {
  const bool changed = num_changes_ > 0;
  const std::vector<ShareTimes> now = gather(group, last_);
  const std::vector<ShareTimes> first = gather(group, changed ? first_ : last_);
  return describe_waste(now, starts_equal_ ? first : std::vector<ShareTimes>(), changed || !starts_equal_, global_batch, planned);
}

std::optional<WasteRecord> describe_waste(const std::vector<ShareTimes>& now, const std::vector<ShareTimes>& equal, bool changed,
                                          int64_t global_batch, const PlannedWaste& planned) {
  const PlannedWaste from_speeds = waste_of_equal_shares(now, static_cast<double>(global_batch));
  if (!std::isfinite(from_speeds.waste)) return std::nullopt;
  if (!changed && from_speeds.waste < ShareWaste::kWorthTelling) return std::nullopt;
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

}  // namespace cohort

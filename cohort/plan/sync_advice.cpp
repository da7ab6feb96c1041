// Time to a goal = samples that it takes / samples a second.
//
//   samples a second   from the virtual clock, for each mode, with these workers, bytes and link (sync=step: measured, if it was)
//   samples            relative to sync=step, from trainings of a CNN and a Transformer in all modes ("Which mode when" in
//                      docs/guide/asynchronous.md): 1 + 0.8 L to 1 + 1.8 L times as many with gradients that are L steps late on average,
//                      1 + 0.04 (H - 1) to 1 + 0.15 (H - 1) with exchanges every H steps
//
// The range of samples gives an interval of the time. A mode is better than step where its whole interval is; where only its lower end is,
// the answer says how to try it on the model. Shares by speed do not change the training, so they come before modes that do. queue and
// diloco are left out, because their trainings took at least 1.5 times the samples. Cost: N work items per step of the clock, for a few
// hundred steps per mode.
#include "cohort/plan/sync_advice.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/explain.h"

namespace cohort {
namespace {

constexpr double kStandsOut = 1.5;  // A step of this many times the median is a pause.
constexpr int kLeastPauses = 3;
constexpr double kSlower = 1.1;  // Factor of the fastest rank; less is noise.
constexpr double kLateLow = 0.8, kLateHigh = 1.8, kLocalLow = 0.04, kLocalHigh = 0.15;
constexpr double kWorthTrying = 0.9;  // Share of the time of step, at the lower end.

double speed_of(const VirtualSpec& clock, int worker) {
  for (const auto& [slow, factor] : clock.slow)
    if (slow == worker) return 1 / factor;
  return 1;
}

/// The conditions with shares of the step by the speed of the workers.
SyncConditions with_shares(SyncConditions conditions) {
  VirtualSpec& clock = conditions.clock;
  double speeds = 0, slowest = 1;
  for (int worker = 0; worker < clock.workers; ++worker) {
    speeds += speed_of(clock, worker);
    slowest = std::max(slowest, 1 / speed_of(clock, worker));
  }
  const double compute = clock.compute_seconds * clock.workers / speeds;
  // What a measured step took besides the slowest worker's computing stays.
  if (conditions.step_seconds > 0)
    conditions.step_seconds = std::max(compute, conditions.step_seconds - clock.compute_seconds * slowest + compute);
  clock.slow.clear();
  clock.compute_seconds = compute;
  return conditions;
}

/// Rounded to hundredths, so that printed products match their factors.
std::string hundredths(double number) {
  const double scale = number >= 99.5 ? 1 : 100;
  return concat(std::round(scale * number) / scale);
}

std::string name_of(const SyncAdviceRecord::Row& row) {
  return concat("sync=", row.sync, row.options.empty() ? "" : " with " + row.options);
}

std::string times_of(const SyncAdviceRecord::Row& row) {
  const std::string low = hundredths(row.time_low), high = hundredths(row.time_high);
  return low == high ? low : low + " to " + high;
}

/// "sync=async makes 1.9 times the samples a second and needs 1.2 to 1.6 times as many, so a goal takes 0.6 to 0.8 times as long
/// as with sync=step".
std::string compared(const SyncAdviceRecord::Row& row, const SyncAdviceRecord::Row& step) {
  const std::string speed = hundredths(row.samples_per_second / step.samples_per_second);
  return concat(name_of(row), " makes ", speed, " times the samples a second",
                row.samples_high <= 1
                    ? std::string(" in the same training")
                    : concat(" and needs ", hundredths(row.samples_low), " to ", hundredths(row.samples_high), " times as many"),
                ", so a goal takes ", times_of(row), " times as long as with ", row.sync == "step" ? "equal shares" : "sync=step");
}

std::string trial_line(const SyncAdviceRecord& advice, const std::string& sync) {
  return concat("; to try it on this model, train it twice", name_settings(" with --virtual "), advice.clock,
                name_settings(": with --layout sync="), sync, " and sync=step");
}

/// The advice, its reason, and how to run a trial where that may decide otherwise.
std::string sentence_for(const SyncAdviceRecord& advice, const std::string& now) {
  const SyncAdviceRecord::Row& step = advice.rows.front();
  const SyncAdviceRecord::Row *best = nullptr, *hope = nullptr;
  for (const SyncAdviceRecord::Row& row : advice.rows) {
    if (row.sync == advice.sync && row.options == advice.options) best = &row;
    if (&row != &step && row.samples_high > 1 && (!hope || row.time_low < hope->time_low)) hope = &row;
  }
  const bool is_step_now = now.empty() || now == "step";
  if (best == &step) {
    const bool is_close = hope && hope->time_low <= kWorthTrying;
    const char* const what = is_close
                                 ? (is_step_now ? "keep sync=step, unless a trial says otherwise: " : "sync=step is the safe choice here: ")
                                 : (is_step_now ? "sync=step is right here: " : "sync=step would be sooner at a goal here: ");
    return concat(what, hope ? compared(*hope, step) : "nothing else goes", is_close ? trial_line(advice, hope->sync) : "");
  }
  const bool is_in_use = best->sync == now && best->options.empty();
  std::string sentence = concat(name_of(*best), is_in_use ? " is right here: it" : " would be sooner at a goal here: it",
                                compared(*best, step).substr(name_of(*best).size()));
  if (hope && hope->time_low <= kWorthTrying * best->time_low && hope->sync != now)
    sentence += concat("; sync=", hope->sync, " may be sooner still, at ", times_of(*hope), trial_line(advice, hope->sync));
  return sentence;
}

}  // namespace

ComputeTimes compute_times(const std::vector<double>& seconds_of_steps) {
  ComputeTimes times;
  if (seconds_of_steps.empty()) return times;
  times.median_seconds = median(seconds_of_steps);
  for (const double seconds : seconds_of_steps) {
    times.all_seconds += seconds;
    if (seconds <= kStandsOut * times.median_seconds) continue;
    times.num_pauses += 1, times.pause_seconds += seconds - times.median_seconds;
  }
  return times;
}

VirtualSpec clock_of(const std::vector<ComputeTimes>& ranks, const LinkEstimate& link) {
  VirtualSpec clock{.workers = static_cast<int>(ranks.size())};
  const auto fastest =
      std::min_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.median_seconds < b.median_seconds; });
  clock.compute_seconds = fastest->median_seconds;
  double pauses = 0, paused = 0, worked = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double factor = ranks[rank].median_seconds / clock.compute_seconds;
    if (factor > kSlower) clock.slow.emplace_back(static_cast<int>(rank), factor);
    pauses += ranks[rank].num_pauses, paused += ranks[rank].pause_seconds;
    worked += ranks[rank].all_seconds - ranks[rank].pause_seconds;
  }
  if (pauses >= kLeastPauses) clock.pause_every_seconds = worked / pauses, clock.pause_seconds = paused / pauses;
  if (link.bytes_per_second > 0 && clock.workers > 1) {
    clock.latency_seconds =
        link.latency_seconds / (2 * (clock.workers - 1));  // The latency of an all-reduce is that of 2 (N - 1) messages.
    clock.bytes_per_second = link.bytes_per_second;
  }
  return clock;
}

const SyncAdviceRecord::Row& best_row(const std::vector<SyncAdviceRecord::Row>& rows) {
  const SyncAdviceRecord::Row* best = &rows.front();
  for (const SyncAdviceRecord::Row& row : rows)
    if (row.time_high < (1 - kNoiseFloor) * best->time_high) best = &row;
  return *best;
}

SyncAdviceRecord advise_sync(const SyncConditions& conditions, const std::string& now, const PaceOfSync& pace_of) {
  SyncAdviceRecord advice{.clock = to_text(conditions.clock)};
  const auto add = [&](const std::string& sync, const std::string& options, const SyncConditions& its) {
    const SyncMode mode = parse_sync(sync);
    const SyncPace pace = pace_of(mode, its);
    SyncAdviceRecord::Row row{.sync = sync,
                              .options = options,
                              .samples_per_second = pace.samples_per_second,
                              .mean_late_steps = pace.mean_late_steps,
                              .samples_low = 1,
                              .samples_high = 1};
    if (mode.kind == SyncKind::kStep && its.step_seconds > 0)
      row.samples_per_second = static_cast<double>(its.global_batch) / its.step_seconds;
    const auto between = static_cast<double>(steps_between_exchanges(mode) - 1);
    row.samples_low += kLateLow * pace.mean_late_steps + kLocalLow * between;
    row.samples_high += kLateHigh * pace.mean_late_steps + kLocalHigh * between;
    const double step = advice.rows.empty() ? row.samples_per_second : advice.rows.front().samples_per_second;
    row.time_low = row.samples_low * step / row.samples_per_second, row.time_high = row.samples_high * step / row.samples_per_second;
    advice.rows.push_back(std::move(row));
  };
  add("step", "", conditions);
  if (!conditions.clock.slow.empty()) add("step", name_settings("--shares auto"), with_shares(conditions));
  std::vector<std::string> others = {"async", "stale:2", "local:4", "local:16"};
  if (!now.empty() && now != "step" && std::find(others.begin(), others.end(), now) == others.end()) {
    const SyncMode mode = parse_sync(now);
    // stale:0 is step with another exchange, which the clock does not model.
    if ((mode.kind == SyncKind::kStale && mode.number > 0) || mode.kind == SyncKind::kLocal) others.push_back(now);
  }
  for (const std::string& sync : others) add(sync, "", conditions);
  const SyncAdviceRecord::Row& best = best_row(advice.rows);
  advice.sync = best.sync, advice.options = best.options;
  advice.sentence = sentence_for(advice, now);
  return advice;
}

}  // namespace cohort

// Two groups of lanes ("processes" of the format), predicted and measured, one lane ("thread") a rank; times in microseconds.
#include "cohort/runlog/run_trace.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

constexpr size_t kMostSpans = 1024;  // Per lane, to bound the file.

void add(std::vector<TraceSpan>& lane, const char* name, double& at, double seconds) {
  if (!(seconds > 0)) return;
  lane.push_back({name, name, at, at + seconds});
  at += seconds;
}

/// The schedule's lane that a rank follows: schedules number the positions on the pipeline axis, or all replicas of these.
const std::vector<TimedAction>* actions_of(const ForecastRecord& forecast, const Timeline& timeline, size_t worker, size_t replica) {
  if (timeline.ranks.size() == forecast.workers.size()) return &timeline.ranks[worker];
  size_t lane = replica;
  for (size_t before = 0; before < worker; ++before) lane += forecast.workers[before].ranks.size();
  return lane < timeline.ranks.size() ? &timeline.ranks[lane] : nullptr;
}

std::vector<TraceSpan> predicted_lane(const ForecastRecord::Worker& worker, const std::vector<TimedAction>* actions, double makespan,
                                      int passes) {
  std::vector<TraceSpan> lane;
  double at = 0;
  if (actions && !actions->empty()) {
    for (int pass = 0; pass < passes; ++pass, at += makespan)
      for (const TimedAction& timed : *actions)
        lane.push_back({action_text(timed.action), trace_category(timed.action), at + timed.start, at + timed.end});
  } else {
    add(lane, "forward", at, worker.forward_seconds);
    add(lane, "backward", at, worker.backward_seconds);
  }
  add(lane, "exchange", at, worker.exposed_exchange_seconds);
  add(lane, "update", at, worker.update_seconds);
  return lane;
}

void add_group(Json& events, int group, const std::string& name, const TraceLanes& lanes) {
  constexpr double kMicroseconds = 1e6;
  if (std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.empty(); })) return;
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", group}, {"args", {{"name", name}}}});
  events.push_back({{"name", "process_sort_index"}, {"ph", "M"}, {"pid", group}, {"args", {{"sort_index", group}}}});
  for (size_t rank = 0; rank < lanes.size(); ++rank) {
    const bool is_cut = lanes[rank].size() > kMostSpans;
    const std::string lane = concat("rank ", rank, is_cut ? concat(", its first ", kMostSpans, " parts") : "");
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", group}, {"tid", rank}, {"args", {{"name", lane}}}});
    for (size_t i = 0; i < std::min(kMostSpans, lanes[rank].size()); ++i) {
      const TraceSpan& span = lanes[rank][i];
      events.push_back({{"name", span.name},
                        {"cat", span.category},
                        {"ph", "X"},
                        {"ts", span.start * kMicroseconds},
                        {"dur", std::max(0.0, span.end - span.start) * kMicroseconds},
                        {"pid", group},
                        {"tid", rank}});
    }
  }
}

}  // namespace

TraceLanes predicted_lanes(const ForecastRecord& forecast, const Timeline& timeline, int passes, int num_ranks) {
  TraceLanes lanes(static_cast<size_t>(num_ranks));
  for (size_t worker = 0; worker < forecast.workers.size(); ++worker) {
    const std::vector<int64_t>& ranks = forecast.workers[worker].ranks;
    for (size_t replica = 0; replica < ranks.size(); ++replica)
      if (ranks[replica] < num_ranks)
        lanes[static_cast<size_t>(ranks[replica])] =
            predicted_lane(forecast.workers[worker], actions_of(forecast, timeline, worker, replica), timeline.makespan, passes);
  }
  return lanes;
}

Json run_trace(const TraceLanes& predicted, const TraceLanes& measured, const std::string& measured_name) {
  Json events = Json::array();
  add_group(events, 0, "predicted", predicted);
  add_group(events, 1, measured_name, measured);
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace cohort

#include "cohort/runlog/run_trace.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/text/json.h"

namespace cohort {
namespace {

ForecastRecord::Worker worker(std::vector<int64_t> ranks) {
  ForecastRecord::Worker its;
  its.ranks = std::move(ranks);
  its.forward_seconds = 1, its.backward_seconds = 2, its.exposed_exchange_seconds = 0.5, its.update_seconds = 0.25;
  return its;
}

std::vector<std::string> names(const std::vector<TraceSpan>& lane) {
  std::vector<std::string> out;
  for (const TraceSpan& span : lane) out.push_back(span.name);
  return out;
}

TEST_CASE("run trace: blocks one after the other where there is no schedule") {
  ForecastRecord forecast;
  forecast.workers = {worker({0, 1})};
  const TraceLanes lanes = predicted_lanes(forecast, {}, 1, 2);
  REQUIRE(lanes.size() == 2);
  for (const auto& lane : lanes) {
    CHECK(names(lane) == std::vector<std::string>{"forward", "backward", "exchange", "update"});
    CHECK(lane.back().start == 3.5);
    CHECK(lane.back().end == 3.75);
  }
}

TEST_CASE("run trace: the schedule of each place, as often as a step goes through it, and replicas of their own") {
  Timeline timeline{.makespan = 10};
  timeline.ranks = {{{Action{ActionKind::kForward, 0, 0, 0}, 0, 4}}, {{Action{ActionKind::kBackward, 1, 0, 0}, 4, 10}}};
  ForecastRecord even;
  even.workers = {worker({0, 2}), worker({1, 3})};
  const TraceLanes lanes = predicted_lanes(even, timeline, 2, 4);
  REQUIRE(lanes.size() == 4);
  CHECK(lanes[0].size() == 4);
  CHECK(lanes[0][1].start == 10);
  CHECK(lanes[0][2].name == "exchange");
  CHECK(lanes[0][2].start == 20);
  CHECK(lanes[2][0].category == "forward");
  CHECK(lanes[3][0].category == "backward");
  ForecastRecord uneven;  // Three lanes: the first place has two replicas.
  uneven.workers = {worker({0, 1}), worker({2})};
  timeline.ranks.insert(timeline.ranks.begin(), {{Action{ActionKind::kForward, 0, 1, 0}, 1, 2}});
  CHECK(predicted_lanes(uneven, timeline, 1, 3)[0][0].end == 2);
  CHECK(predicted_lanes(uneven, timeline, 1, 3)[2][0].end == 10);
}

TEST_CASE("run trace: two groups of lanes, in microseconds, and small") {
  const TraceLanes predicted = {{{"forward", "forward", 0, 0.5}}, {}};
  TraceLanes measured = {{{"forward", "forward", 0, 0.25}}, std::vector<TraceSpan>(5000, {"F0.0", "forward", 0.5, 1})};
  const Json trace = run_trace(predicted, measured, "measured, step 7");
  const Json& events = trace["traceEvents"];
  const auto of_group = [&](int group, const char* phase) {
    return std::count_if(events.begin(), events.end(), [&](const Json& one) { return one["pid"] == group && one["ph"] == phase; });
  };
  CHECK(of_group(0, "X") == 1);
  CHECK(of_group(1, "X") == 1025);
  CHECK(of_group(0, "M") == 4);
  CHECK(events[0]["args"]["name"] == "predicted");
  const auto lane = std::find_if(events.begin(), events.end(), [](const Json& one) { return one["ph"] == "X"; });
  CHECK((*lane)["dur"] == 500000.0);
  CHECK(run_trace({}, measured, "m")["traceEvents"][0]["args"]["name"] == "m");
  CHECK(run_trace({}, {{}, {}}, "m")["traceEvents"].empty());
}

}  // namespace
}  // namespace cohort

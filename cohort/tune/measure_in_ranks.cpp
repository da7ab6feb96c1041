#include "cohort/tune/measure_in_ranks.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/shared_text.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/memory.h"
#include "cohort/base/text/json.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/world/launch.h"
#include "cohort/world/stop.h"

namespace cohort {

Json measure_in_ranks(int num_ranks, const std::string& backend, const std::function<Json(const World& world, Group& group)>& measure) {
  const SharedText answer;
  const int code = run_ranks({.num_ranks = num_ranks, .is_one_of_many = true}, [&](const World& world) {
    end_at_stop_signals();
    keep_freed_memory();
    use_compute_threads(1);
    Group group = Group::create(world, {.backend = backend});
    const Json measured = measure(world, group);
    if (world.rank == 0) answer.write(measured.dump());
    return 0;
  });
  if (code == static_cast<int>(ErrorCode::kInterrupted)) fail(ErrorCode::kInterrupted, "interrupted while this machine was measured");
  if (code != 0) throw Error(static_cast<ErrorCode>(code), "");  // The launcher has said which rank ended, and how.
  return Json::parse(answer.read());
}

namespace {

using Clock = std::chrono::steady_clock;

/// What keeps this rank's processor busy; a receive waits.
bool is_work(const Action& action) { return action.kind != ActionKind::kReceiveForward && action.kind != ActionKind::kReceiveBackward; }

Json to_json(const TimedAction& timed) {
  const Action& action = timed.action;
  return Json{static_cast<int>(action.kind), action.stage, action.micro_batch, action.peer, timed.start, timed.end};
}

TimedAction timed_action_from_json(const Json& json) {
  const Action action{static_cast<ActionKind>(json.at(0).get<int>()), json.at(1).get<int>(), json.at(2).get<int>(), json.at(3).get<int>()};
  return {action, json.at(4).get<double>(), json.at(5).get<double>()};
}

}  // namespace

PipelineMeter::PipelineMeter(PipelineRunner& pipeline, Group group) : pipeline_(pipeline), group_(std::move(group)) {}
PipelineMeter::~PipelineMeter() { pipeline_.record(nullptr); }

void PipelineMeter::step(const std::function<void()>& run) {
  actions_.clear();
  pipeline_.record(&actions_);
  group_.barrier();
  const auto start = Clock::now();
  run();
  group_.barrier();
  step_seconds_.push_back(seconds_since(start));
  pipeline_.record(nullptr);
  std::erase_if(actions_, [](const TimedAction& timed) { return !is_work(timed.action); });
  Span span{std::numeric_limits<double>::infinity(), 0, 0};
  for (const TimedAction& timed : actions_) {
    span.start = std::min(span.start, timed.start);
    span.end = std::max(span.end, timed.end);
    span.busy += timed.end - timed.start;
  }
  spans_.push_back(span);
}

PipelineMeter::Result PipelineMeter::result() {
  Json own{{"steps", step_seconds_}, {"spans", Json::array()}, {"last", Json::array()}};
  for (const Span& span : spans_) own["spans"].push_back({span.start, span.end, span.busy});
  for (const TimedAction& timed : actions_) own["last"].push_back(to_json(timed));
  std::vector<Json> ranks;
  for (const std::string& text : group_.all_gather_text(own.dump(), "the times of the pipeline's actions"))
    ranks.push_back(Json::parse(text));

  Result result;
  result.step_seconds = median(ranks.front().at("steps").get<std::vector<double>>());
  std::vector<double> bubbles;
  for (size_t step = 0; step < spans_.size(); ++step) {
    double start = std::numeric_limits<double>::infinity(), end = 0, busy = 0;
    for (const Json& rank : ranks) {
      const Json& span = rank.at("spans").at(step);
      start = std::min(start, span.at(0).get<double>());
      end = std::max(end, span.at(1).get<double>());
      busy += span.at(2).get<double>();
    }
    bubbles.push_back(1 - busy / (static_cast<double>(ranks.size()) * (end - start)));
    if (step + 1 < spans_.size()) continue;
    result.last.makespan = end - start;
    result.last.bubble = bubbles.back();
    for (const Json& rank : ranks) {
      result.last.busy.push_back(rank.at("spans").at(step).at(2).get<double>());
      std::vector<TimedAction>& actions = result.last.ranks.emplace_back();
      for (const Json& one : rank.at("last")) {
        TimedAction timed = timed_action_from_json(one);
        timed.start -= start, timed.end -= start;
        actions.push_back(timed);
      }
    }
  }
  result.bubble = median(bubbles);
  return result;
}

}  // namespace cohort

// Simulates a schedule with the times of its parts. Each rank runs its actions in order; a receive ends when the message has arrived: at
// the end of its send plus the transfer. Links are not shared, so every start is the later of two known ends: exact, and linear in the
// number of actions.
#include "cohort/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/slots.h"

namespace cohort {
namespace {

constexpr double kNotYet = -1;

void check_time(const char* what, double value) {
  if (!std::isfinite(value) || value < 0)
    fail(ErrorCode::kBadInput, "simulate: the time of ", what, " is ", value, "; expected a number of at least 0");
}

class Replay {
 public:
  Replay(const Schedule& schedule, const StageCosts& costs)
      : schedule_(schedule), costs_(costs), slots_(schedule, true), sent_(slots_.size(), kNotYet), clock_(schedule.num_ranks(), 0) {
    timeline_.busy.resize(schedule.num_ranks());
    timeline_.ranks.resize(schedule.num_ranks());
  }

  Timeline run() {
    std::vector<size_t> next(schedule_.num_ranks(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
        while (next[rank] < schedule_.actions[rank].size() && advance(rank, schedule_.actions[rank][next[rank]])) {
          ++next[rank];
          moved = true;
        }
    }
    measure();
    return std::move(timeline_);
  }

 private:
  /// False where the message has not been sent.
  bool advance(int rank, const Action& action) {
    double ready = clock_[rank];
    if (action.kind == ActionKind::kReceiveForward || action.kind == ActionKind::kReceiveBackward) {
      slots_.needs(action, rank, needs_);
      const double sent = sent_[needs_.front()];
      if (sent == kNotYet) return false;
      ready = std::max(ready, sent + transfer_time(costs_, action.peer, action.stage));
    }
    const double took = duration(action), end = ready + took;
    clock_[rank] = end;
    if (is_transfer(action.kind)) sent_[slots_.of(action)] = end;
    if (!is_transfer(action.kind) || took > 0) {
      timeline_.ranks[rank].push_back({action, ready, end});
      timeline_.busy[rank] += took;
    }
    return true;
  }

  double duration(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return costs_.forward[action.stage];
      case ActionKind::kBackward:
        return costs_.backward_input[action.stage] + costs_.backward_weight[action.stage];
      case ActionKind::kBackwardInput:
        return costs_.backward_input[action.stage];
      case ActionKind::kBackwardWeight:
        return costs_.backward_weight[action.stage];
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        return costs_.send;
      default:
        return costs_.receive;
    }
  }

  void measure() {
    double start = std::numeric_limits<double>::infinity(), end = 0, busy = 0;
    for (const auto& rank : timeline_.ranks) {
      if (rank.empty()) continue;
      start = std::min(start, rank.front().start);
      end = std::max(end, rank.back().end);
    }
    for (const double time : timeline_.busy) busy += time;
    timeline_.makespan = end - start;
    if (timeline_.makespan > 0) timeline_.bubble = std::max(0.0, 1 - busy / (schedule_.num_ranks() * timeline_.makespan));
  }

  const Schedule& schedule_;
  const StageCosts& costs_;
  const Slots slots_;
  std::vector<double> sent_;   ///< By slot: end of the send.
  std::vector<double> clock_;  ///< Per rank.
  std::vector<size_t> needs_;
  Timeline timeline_;
};

}  // namespace

double transfer_time(const StageCosts& costs, int from, int to) {
  const double time = costs.transfer ? costs.transfer(from, to) : 0;
  check_time("a transfer", time);
  return time;
}

void check_costs(const StageCosts& costs, int num_stages) {
  const auto check = [&](const char* what, const std::vector<double>& times) {
    if (static_cast<int>(times.size()) != num_stages)
      fail(ErrorCode::kBadInput, "simulate: ", times.size(), " times of ", what, " for ", num_stages, " stages; give one a stage");
    for (const double time : times) check_time(what, time);
  };
  check("forward", costs.forward);
  check("backward_input", costs.backward_input);
  check("backward_weight", costs.backward_weight);
  check_time("send", costs.send);
  check_time("receive", costs.receive);
}

Timeline simulate(const Schedule& schedule, const StageCosts& costs) {
  const ScheduleFacts facts = check_schedule(schedule);
  check_costs(costs, schedule.num_stages);
  Schedule complete = schedule;
  add_transfers(complete);
  Timeline timeline = Replay(complete, costs).run();
  timeline.peak_stash = facts.peak_stash;
  return timeline;
}

}  // namespace cohort

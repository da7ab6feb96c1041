#include "cohort/schedule/generators.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <stdexcept>

namespace cohort {
namespace {

constexpr double kUnknown = -1;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// The micro-batches of one stage on one rank.
struct Lane {
  int stage, stride;
  int next_forward, next_backward;  ///< Micro-batches.
};

struct Rank {
  std::vector<Lane> lanes;
  std::deque<Action> weights;  ///< Pending weight parts, oldest first.
  double free = 0;
  int stash = 0;
};

struct Choice {
  Lane* lane = nullptr;
  bool backward = false;
  double next_ready = kNever;  ///< When the next action becomes ready, as far as known.
};

class ListScheduler {
 public:
  ListScheduler(Schedule& schedule, const ListRules& rules, const StageCosts& costs) : schedule_(schedule), rules_(rules), costs_(costs) {
    const int stages = schedule.num_stages, m = schedule.num_micro_batches;
    producers_.resize(stages);
    consumers_.resize(stages);
    for (const auto& [from, to] : schedule.edges) {
      consumers_[from].push_back(to);
      producers_[to].push_back(from);
    }
    forward_end_.assign(static_cast<size_t>(stages) * m, kUnknown);
    backward_end_ = forward_end_;
    ranks_.resize(schedule.num_ranks());
    ordered_.resize(schedule.num_ranks());
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<int>& owners = rules.ranks_of_stage[stage];
      for (int i = 0; i < static_cast<int>(owners.size()); ++i)
        ranks_[owners[i]].lanes.push_back({stage, static_cast<int>(owners.size()), i, i});
    }
  }

  double run() {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) events_.push({0, rank});
    while (!events_.empty()) {
      const auto [time, rank] = events_.top();
      events_.pop();
      if (ranks_[rank].free <= time) take_next(rank, time);
    }
    for (const Rank& rank : ranks_)
      for (const Lane& lane : rank.lanes)
        if (lane.next_backward < schedule_.num_micro_batches || !rank.weights.empty()) return kNever;
    return last_end_;
  }

 private:
  size_t at(int stage, int k) const { return static_cast<size_t>(stage) * schedule_.num_micro_batches + k; }
  int owner(int stage, int k) const {
    const std::vector<int>& owners = rules_.ranks_of_stage[stage];
    return owners[k % owners.size()];
  }
  double transfer(int from, int to, int k) const { return owner(from, k) != owner(to, k) ? transfer_time(costs_, from, to) : 0; }

  double forward_ready(int stage, int k) const {
    double ready = 0;
    for (const int from : producers_[stage]) {
      const double end = forward_end_[at(from, k)];
      if (end == kUnknown) return kNever;
      ready = std::max(ready, end + transfer(from, stage, k));
    }
    return ready;
  }

  double backward_ready(int stage, int k) const {
    double ready = forward_end_[at(stage, k)];
    if (ready == kUnknown) return kNever;
    for (const int to : consumers_[stage]) {
      const double end = backward_end_[at(to, k)];
      if (end == kUnknown) return kNever;
      ready = std::max(ready, end + transfer(to, stage, k));
    }
    return ready;
  }

  bool may_forward(int rank, const Lane& lane) const {
    return lane.next_forward < schedule_.num_micro_batches &&
           (lane.next_forward - lane.next_backward) / lane.stride < rules_.stage_limit[lane.stage] &&
           ranks_[rank].stash + rules_.reserve[lane.stage] < rules_.rank_limit[rank];
  }

  /// The rank's next forward or input gradient of the given order; null at its end.
  const Action* next_ordered(int rank) const {
    const std::vector<Action>& actions = rules_.order->actions[rank];
    size_t& place = ordered_[rank];
    while (place < actions.size() && actions[place].kind == ActionKind::kBackwardWeight) ++place;
    return place < actions.size() ? &actions[place] : nullptr;
  }

  Choice choose(int rank, double time) {
    Choice choice;
    const auto offer = [&](Lane& lane, bool backward, double ready) {
      if (ready > time) {
        choice.next_ready = std::min(choice.next_ready, ready);
        return;
      }
      const auto micro_batch = [&](const Lane& of) { return backward ? of.next_backward : of.next_forward; };
      const auto beats = [&](const Lane& other) {
        if (backward != choice.backward) return backward != rules_.forward_first;
        if (micro_batch(lane) != micro_batch(other)) return micro_batch(lane) < micro_batch(other);
        return backward == (lane.stage > other.stage);
      };
      if (choice.lane == nullptr || beats(*choice.lane)) choice.lane = &lane, choice.backward = backward;
    };
    const Action* const ordered = rules_.order ? next_ordered(rank) : nullptr;
    for (Lane& lane : ranks_[rank].lanes) {
      if (rules_.order) {
        if (ordered == nullptr || ordered->stage != lane.stage) continue;
        if (ordered->kind != ActionKind::kForward) offer(lane, true, backward_ready(lane.stage, lane.next_backward));
        else if (ranks_[rank].stash < rules_.rank_limit[rank]) offer(lane, false, forward_ready(lane.stage, lane.next_forward));
        continue;
      }
      if (lane.next_backward < lane.next_forward) offer(lane, true, backward_ready(lane.stage, lane.next_backward));
      if (may_forward(rank, lane)) offer(lane, false, forward_ready(lane.stage, lane.next_forward));
    }
    return choice;
  }

  void take_next(int rank, double time) {
    Rank& state = ranks_[rank];
    const Choice choice = choose(rank, time);
    if (choice.lane != nullptr) {
      ++ordered_[rank];
      choice.backward ? do_backward(rank, *choice.lane, time) : do_forward(rank, *choice.lane, time);
    } else if (!state.weights.empty()) {
      const double took = costs_.backward_weight[state.weights.front().stage];
      if (choice.next_ready < time + (1 - rules_.delay) * took) return;
      schedule_.actions[rank].push_back(state.weights.front());
      state.weights.pop_front();
      --state.stash;
      finish(rank, time + took);
    }
  }

  void do_forward(int rank, Lane& lane, double time) {
    const int stage = lane.stage, k = lane.next_forward;
    schedule_.actions[rank].push_back(forward(stage, k));
    lane.next_forward += lane.stride;
    ++ranks_[rank].stash;
    const double end = forward_end_[at(stage, k)] = time + costs_.forward[stage];
    for (const int to : consumers_[stage]) events_.push({end + transfer(stage, to, k), owner(to, k)});
    finish(rank, end);
  }

  void do_backward(int rank, Lane& lane, double time) {
    const int stage = lane.stage, k = lane.next_backward;
    lane.next_backward += lane.stride;
    double end = time + costs_.backward_input[stage];
    if (rules_.split_backward) {
      schedule_.actions[rank].push_back(backward_input(stage, k));
      ranks_[rank].weights.push_back(backward_weight(stage, k));
    } else {
      schedule_.actions[rank].push_back(backward(stage, k));
      --ranks_[rank].stash;
      end += costs_.backward_weight[stage];
    }
    backward_end_[at(stage, k)] = end;
    for (const int from : producers_[stage]) events_.push({end + transfer(stage, from, k), owner(from, k)});
    finish(rank, end);
  }

  void finish(int rank, double end) {
    ranks_[rank].free = end;
    last_end_ = std::max(last_end_, end);
    events_.push({end, rank});
  }

  Schedule& schedule_;
  const ListRules& rules_;
  const StageCosts& costs_;
  std::vector<std::vector<int>> producers_, consumers_;
  std::vector<double> forward_end_, backward_end_;  ///< By (stage, micro-batch).
  std::vector<Rank> ranks_;
  double last_end_ = 0;
  mutable std::vector<size_t> ordered_;  ///< Per rank: position in the given order.
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> events_;  ///< (time, rank).
};

}  // namespace

double list_schedule(Schedule& schedule, const ListRules& rules, const StageCosts& costs) {
  check_costs(costs, schedule.num_stages);
  for (std::vector<Action>& rank : schedule.actions) rank.clear();
  return ListScheduler(schedule, rules, costs).run();
}

Schedule fastest_schedule(const Schedule& schedule, const std::vector<ListRules>& rules, const StageCosts& costs) {
  Schedule best = schedule;
  double least = kNever;
  const auto try_rules = [&](const ListRules& tried) {
    Schedule candidate = schedule;
    const double makespan = list_schedule(candidate, tried, costs);
    if (makespan < least) least = makespan, best = std::move(candidate);
  };
  for (ListRules tried : rules)
    for (const bool forward_first : {false, true}) {
      if (forward_first && tried.order) break;
      tried.forward_first = forward_first;
      for (const double delay : {1.0, 0.5, 0.0}) {
        tried.delay = delay;
        try_rules(tried);
        if (!tried.split_backward) break;
      }
    }
  // The times above exclude the processors' costs of messages, so the simulation decides against another kind of schedule.
  const bool has_base = !schedule.actions.front().empty();
  if (least == kNever) {
    if (has_base) return schedule;
    throw std::logic_error("fastest_schedule: the limits of all rules leave no way on");
  }
  return has_base && simulate(schedule, costs).makespan <= simulate(best, costs).makespan ? schedule : best;
}

StageCosts equal_costs(int num_stages) {
  StageCosts costs;
  costs.forward.assign(num_stages, 1);
  costs.backward_input = costs.backward_weight = costs.forward;
  return costs;
}

}  // namespace cohort

#pragma once
// For tests of schedules: all schedules of all small shapes, and a machine that runs a schedule naively. It was written apart from the
// checker, with sets of values and one queue for each pair of ranks, to hold the checker against.

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/schedule/schedule.h"

namespace cohort {

/// Calls visit(name, ranks, micro-batches) for every schedule with 1 to 3 chunks, 1 to 8 ranks and 1 to 8 micro-batches.
template <typename Visit>
void for_each_small_schedule(const Visit& visit) {
  for (const char* name : {"gpipe", "1f1b", "interleaved:1", "interleaved:2", "interleaved:3", "bfs:1", "bfs:2", "bfs:3", "zb-h1", "zb-v"})
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 8; ++m) visit(std::string(name), p, m);
}

class NaiveMachine {
 public:
  explicit NaiveMachine(const Schedule& schedule) : schedule_(schedule), transfers_(has_transfers(schedule)), own_(schedule.num_ranks()) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank)
      for (const Action& action : schedule.actions[rank]) {
        ++count_[{action.kind, action.stage, action.micro_batch}];
        if (action.kind == ActionKind::kForward) forward_rank_[{action.stage, action.micro_batch}] = rank;
        if (is_input_part(action)) backward_rank_[{action.stage, action.micro_batch}] = rank;
      }
  }

  /// True where everything is done once, all ranks come to their end and no message is left.
  bool runs() {
    for (int stage = 0; stage < schedule_.num_stages; ++stage)
      for (int k = 0; k < schedule_.num_micro_batches; ++k)
        if (!is_complete(stage, k)) return false;
    std::vector<size_t> next(schedule_.num_ranks(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
        while (next[rank] < schedule_.actions[rank].size() && step(schedule_.actions[rank][next[rank]], rank)) ++next[rank], moved = true;
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
      if (next[rank] < schedule_.actions[rank].size()) return false;
    for (const auto& [ranks, queue] : channels_)
      if (!queue.empty()) return false;
    return true;
  }

 private:
  using Message = std::tuple<bool, int, int, int>;  ///< (forward, from stage, to stage, micro-batch).
  using Result = std::tuple<char, int, int>;        ///< ('F', 'B' or 'W', stage, micro-batch).

  static bool is_input_part(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  }

  bool is_complete(int stage, int k) {
    const int whole = count_[{ActionKind::kBackward, stage, k}], input = count_[{ActionKind::kBackwardInput, stage, k}],
              weight = count_[{ActionKind::kBackwardWeight, stage, k}];
    return count_[{ActionKind::kForward, stage, k}] == 1 && whole + input == 1 && weight == input;
  }

  bool has(int rank, char what, int stage, int k) const { return own_[rank].contains({what, stage, k}); }

  bool has_value(int rank, bool forward, int from, int to, int k) {
    const int maker = forward ? forward_rank_[{from, k}] : backward_rank_[{from, k}];
    const char what = forward ? 'F' : 'B';
    if (maker == rank || !transfers_) return has(maker, what, from, k);
    return received_.contains({rank, {forward, from, to, k}});
  }

  bool compute(const Action& action, int rank) {
    const auto& [kind, stage, k, peer] = action;
    if (kind == ActionKind::kBackwardWeight) {
      if (!has(rank, 'B', stage, k)) return false;
      return own_[rank].insert({'W', stage, k}).second;
    }
    const bool forward = kind == ActionKind::kForward;
    if (!forward && !has(rank, 'F', stage, k)) return false;
    for (const auto& [from, to] : schedule_.edges) {
      if (forward && to == stage && !has_value(rank, true, from, to, k)) return false;
      if (!forward && from == stage && !has_value(rank, false, to, from, k)) return false;
    }
    return own_[rank].insert({forward ? 'F' : 'B', stage, k}).second;
  }

  bool step(const Action& action, int rank) {
    const auto& [kind, stage, k, peer] = action;
    if (!is_transfer(kind)) return compute(action, rank);
    const bool forward = kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward;
    const auto& rank_of = forward ? forward_rank_ : backward_rank_;
    const auto other = rank_of.find({peer, k});
    if (other == rank_of.end() || other->second == rank) return false;
    if (kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward) {
      if (!has(rank, forward ? 'F' : 'B', stage, k)) return false;
      channels_[{rank, other->second}].push_back({forward, stage, peer, k});
      return true;
    }
    auto& queue = channels_[{other->second, rank}];
    const Message wanted = {forward, peer, stage, k};
    if (queue.empty() || queue.front() != wanted) return false;
    queue.pop_front();
    return received_.insert({rank, wanted}).second;
  }

  const Schedule& schedule_;
  const bool transfers_;
  std::map<std::tuple<ActionKind, int, int>, int> count_;
  std::map<std::pair<int, int>, int> forward_rank_, backward_rank_;
  std::vector<std::set<Result>> own_;
  std::set<std::pair<int, Message>> received_;
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
};

}  // namespace cohort

#pragma once
// Index of a schedule: each result that it can produce (an output, a gradient, a message sent or received) has a number, its slot, and a
// location. The requirements of an action are a list of slots. Internal to this room.

#include <cstddef>
#include <vector>

#include "cohort/schedule/schedule.h"

namespace cohort {

class Slots {
 public:
  struct Location {
    int rank = -1;  ///< -1: missing.
    int position = -1;
  };

  /// `with_transfers`: values reach other ranks by transfers, present or to be added; else directly. Error(kBadInput) with rank, position
  /// and action for invalid sizes, an invalid action, or a repeated one.
  Slots(const Schedule& schedule, bool with_transfers);

  size_t size() const { return locations_.size(); }
  size_t forward(int stage, int micro_batch) const { return index(0, stage, micro_batch); }
  /// The gradients of the inputs, by a whole backward or its input part.
  size_t backward(int stage, int micro_batch) const { return index(1, stage, micro_batch); }
  size_t weight(int stage, int micro_batch) const { return index(2, stage, micro_batch); }
  /// The slot that `action` produces.
  size_t of(const Action& action) const;
  const Location& location(size_t slot) const { return locations_[slot]; }
  /// The action that produces `slot`.
  Action action(size_t slot) const;

  /// The slots that must be done before `action` of `rank`: results of its own rank, receives of those of others, and for a receive the
  /// send on the other rank. Without transfers the results of other ranks themselves. Overwrites `slots`.
  void needs(const Action& action, int rank, std::vector<size_t>& slots) const;

  /// Stages that read `stage`'s values, or that it reads from.
  const std::vector<int>& consumers(int stage) const { return consumers_[stage]; }
  const std::vector<int>& producers(int stage) const { return producers_[stage]; }
  /// For errors: "rank 2, action 5 (F0.1)".
  std::string where(const Location& location) const;

 private:
  size_t index(size_t table, int stage, int micro_batch) const;
  /// The slot of a transfer over the edge between two stages.
  size_t transfer(const Action& action) const;
  void check_action(const Action& action, const Location& location) const;
  void fill();

  const Schedule& schedule_;
  bool with_transfers_;
  std::vector<std::vector<int>> consumers_, producers_;
  std::vector<Location> locations_;
};

}  // namespace cohort

#pragma once
// Where everything is in a schedule: each result that a schedule can make (an output, a gradient, a message sent or received) has one
// number, a slot, and each slot one place. What an action needs is a list of slots. Internal to this room.

#include <cstddef>
#include <vector>

#include "cohort/schedule/schedule.h"

namespace cohort {

class Slots {
 public:
  struct Place {
    int rank = -1;  ///< -1: nobody makes it.
    int position = -1;
  };

  /// `with_transfers`: values reach other ranks by transfers, there or to be added; else straight from the actions that make them.
  /// Error(kBadInput) with rank, position and action for sizes that do not fit, an action that cannot be, or one done twice.
  Slots(const Schedule& schedule, bool with_transfers);

  size_t size() const { return places_.size(); }
  size_t forward(int stage, int micro_batch) const { return index(0, stage, micro_batch); }
  /// Of the gradients of the inputs, by a whole backward or its input part.
  size_t backward(int stage, int micro_batch) const { return index(1, stage, micro_batch); }
  size_t weight(int stage, int micro_batch) const { return index(2, stage, micro_batch); }
  /// What `action` makes.
  size_t of(const Action& action) const;
  const Place& place(size_t slot) const { return places_[slot]; }
  /// The action that would make `slot`.
  Action action(size_t slot) const;

  /// The slots that `action` of `rank` needs done before it: results of its own rank, receives of those of others, and for a receive the
  /// send on the other rank. Without transfers the results of other ranks themselves. `slots` is overwritten.
  void needs(const Action& action, int rank, std::vector<size_t>& slots) const;

  /// Stages that `stage` hands values to, or gets them from.
  const std::vector<int>& consumers(int stage) const { return consumers_[stage]; }
  const std::vector<int>& producers(int stage) const { return producers_[stage]; }
  /// For errors: "rank 2, action 5 (F0.1)".
  std::string where(const Place& place) const;

 private:
  size_t index(size_t table, int stage, int micro_batch) const;
  /// The slot of a transfer over the edge between two stages; fails where there is none.
  size_t transfer(const Action& action) const;
  void check_action(const Action& action, const Place& place) const;
  void fill();

  const Schedule& schedule_;
  bool with_transfers_;
  std::vector<std::vector<int>> consumers_, producers_;
  std::vector<Place> places_;
};

}  // namespace cohort

#pragma once
// Prunes the weights of this rank while it trains.

#include <cstdint>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/train/pruning/prunable.h"

namespace cohort {

class LayerGraph;

/// One per rank and thread. References must outlive it.
class Pruner {
 public:
  /// `group`: the ranks over which `strategy` works. Tensors that are in another stage of a pipeline are left to its ranks.
  /// Error(kBadInput) where the strategy's ranks do not know which weights they update.
  Pruner(const Pruning& pruning, const PruningSchedule& schedule, const PrunableModel& prunable, const LayerGraph& part, Strategy& strategy,
         Group group);

  /// Between the exchange of step `number`'s gradients and Strategy::step(): what is pruned then. Collective over the group.
  void begin_update(int64_t number);
  /// After it.
  void end_update();

 private:
  void choose(double sparsity);

  Pruning pruning_;
  PruningSchedule schedule_;
  const PrunableModel& prunable_;
  std::vector<size_t> places_;     ///< In prunable_: tensors of this rank's part.
  std::vector<int64_t> segments_;  ///< One a place: its segment of the optimizer, or -1.
  Strategy& strategy_;
  Group group_;
  bool keeps_zeros_ = false, chose_ = false;
};

}  // namespace cohort

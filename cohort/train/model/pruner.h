#pragma once
// Prunes weights while a model trains (--prune).

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

class LayerGraph;

/// The sparsity of each tensor, given that of all elements together, which it rises with. `shapes` are of non-empty tensors. Torch-free.
std::vector<double> layer_sparsities(const std::vector<std::vector<int64_t>>& shapes, double sparsity);

struct PrunableTensor {
  std::string name;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
};

struct PrunableModel {
  std::vector<PrunableTensor> tensors;
  std::vector<std::string> left;  ///< Matrices and kernels that are not pruned: "conv1.weight (the first convolution)".
  int64_t num_parameters = 0;     ///< All parameters of the whole model.

  int64_t num_elements() const;
  /// The sparsity of each tensor: layer_sparsities(), or the same for all.
  std::vector<double> sparsities(const Pruning& pruning, double sparsity) const;
};

/// The trained matrices and kernels: parameters of two or more dimensions with "weight" in their name, except those of embeddings, the
/// first layer if it is a convolution (it is small, and all others depend on it), and for kTwoOfFour those whose number of columns is not a
/// multiple of 4. `model` is whole. Error(kBadInput) if there are none.
PrunableModel prunable_tensors(const LayerGraph& model, Pruning::Granularity granularity);

/// "prune weight:0.9: of 3 tensors with 3,272,704 of 3,274,634 parameters, from step 31 to 210, every 3; by their shapes from 0 % of
/// output.weight to 90.3 % of hidden.weight; left: conv1.weight (the first convolution)"
std::string describe_pruning(const std::string& how, const Pruning& pruning, const PrunableModel& model, const PruningSchedule& schedule);

/// One per rank and thread. References must outlive it.
class Pruner {
 public:
  /// `group`: the ranks of `strategy`. Tensors of other pipeline stages are pruned by the ranks of those. Error(kBadInput) if the strategy
  /// has no optimizer that knows which weights it updates.
  Pruner(const Pruning& pruning, const PruningSchedule& schedule, const PrunableModel& prunable, const LayerGraph& part, Strategy& strategy,
         Group group);

  /// Called between the exchange of step `number`'s gradients and Strategy::step(). Collective over the group.
  void begin_update(int64_t number);
  /// Called after Strategy::step().
  void end_update();

 private:
  void choose(double sparsity);

  Pruning pruning_;
  PruningSchedule schedule_;
  const PrunableModel& prunable_;
  std::vector<size_t> places_;     // Indices in prunable_ of the tensors of this rank's part.
  std::vector<int64_t> segments_;  // Their segments of the optimizer, or -1.
  Strategy& strategy_;
  Group group_;
  bool keeps_zeros_ = false, chose_ = false;
};

}  // namespace cohort

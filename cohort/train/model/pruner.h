#pragma once
// Prunes the weights of this rank while it trains: how the sparsity is divided over the matrices, which tensors are pruned and why the
// others are not, and the pruner itself.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

class LayerGraph;

// How the sparsity of a model is divided over its matrices. Torch-free.

/// Part of each tensor that is to be zero, so that `sparsity` of all their elements is. `shapes`: of tensors that have elements. Rises with
/// `sparsity` for each of them.
std::vector<double> layer_sparsities(const std::vector<std::vector<int64_t>>& shapes, double sparsity);

// Which tensors of a model are pruned, and why the others are not.

struct PrunableTensor {
  std::string name;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
};

struct PrunableModel {
  std::vector<PrunableTensor> tensors;
  std::vector<std::string> left;  ///< "conv1.weight (the first convolution)": matrices and kernels that stay as they are.
  int64_t num_parameters = 0;     ///< Of the whole model.

  int64_t num_elements() const;
  /// Part of each tensor that is to be zero where `sparsity` of all is: by their shapes (layer_sparsities above), or the same of each.
  std::vector<double> sparsities(const Pruning& pruning, double sparsity) const;
};

/// The trained matrices and kernels: parameters of two dimensions or more whose name has "weight" in it, but for those of embeddings, for
/// the first layer where it is a convolution (it is small, and all that follows sees through it), and of kTwoOfFour for rows whose number
/// of columns is no multiple of 4. `model` is whole. Error(kBadInput) where none is left.
PrunableModel prunable_tensors(const LayerGraph& model, Pruning::Granularity granularity);

/// "prune weight:0.9: of 3 tensors with 3,272,704 of 3,274,634 parameters, from step 31 to 210, every 3; by their shapes from 0 % of
/// output.weight to 90.3 % of hidden.weight; left: conv1.weight (the first convolution)"
std::string describe_pruning(const std::string& how, const Pruning& pruning, const PrunableModel& model, const PruningSchedule& schedule);

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

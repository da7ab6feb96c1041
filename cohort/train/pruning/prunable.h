#pragma once
// Which tensors of a model are pruned, and why the others are not.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/specs/pruning.h"

namespace cohort {

class LayerGraph;

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
  /// Part of each tensor that is to be zero where `sparsity` of all is: by their shapes (layer_sparsity.h), or the same of each.
  std::vector<double> sparsities(const Pruning& pruning, double sparsity) const;
};

/// The trained matrices and kernels: parameters of two dimensions or more whose name has "weight" in it, but for those of embeddings, for
/// the first layer where it is a convolution (it is small, and all that follows sees through it), and of kTwoOfFour for rows whose number
/// of columns is no multiple of 4. `model` is whole. Error(kBadInput) where none is left.
PrunableModel prunable_tensors(const LayerGraph& model, Pruning::Granularity granularity);

/// "prune weight:0.9: of 3 tensors with 3,272,704 of 3,274,634 parameters, from step 31 to 210, every 3; by their shapes from 0 % of
/// output.weight to 90.3 % of hidden.weight; left: conv1.weight (the first convolution)"; `how` is `pruning` as --prune has it.
std::string describe_pruning(const std::string& how, const Pruning& pruning, const PrunableModel& model, const PruningSchedule& schedule);

}  // namespace cohort

#pragma once
// The rules of tensor parallelism by kind of layer. Used by shard_graph.cpp only.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint/parameter_shard.h"
#include "cohort/comm/group.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort::shard_rules {

/// How a value between two layers is distributed. Whole: bitwise equal on all ranks, and so is its gradient. Else each rank has an equal
/// block of one dimension, in rank order, and the gradient of that block.
enum class Placement { kWhole, kChannels, kFeatures, kPositions };

/// The divided dimension: 1 of {samples, channels, ...}, the last of {samples, ..., features}, 1 of {samples, positions, ...}.
int64_t divided_dim(Placement placement);

/// Divides dimension `dim` of one of a layer's parameters or buffers ("weight", "token.weight") equally.
struct Division {
  std::string name;
  int dim;
};

/// The input of a rule.
struct LayerQuery {
  size_t index = 0;
  const LayerGraph::Layer* layer = nullptr;
  std::vector<Placement> inputs;
  bool is_last = false;           ///< Its output is the model's output.
  bool shares_weight = false;     ///< One of its parameters is shared with another layer.
  bool divide_positions = false;  ///< Sequence parallelism is on.
  int num_ranks = 1;
  Group group;  ///< For `apply`; one rank where nothing is applied.

  bool divides(int64_t size) const { return size % num_ranks == 0; }
};

/// The division of a layer. By default it stays whole and takes whole inputs.
struct LayerPlan {
  std::string placement = "whole", reason;
  bool needs_whole_inputs = true;  ///< Divided ones must be gathered first.
  Placement output = Placement::kWhole;
  bool output_may_stay_divided = false;  ///< As the model's output (divided logits).
  std::vector<Division> divisions;       ///< Divided parameters and buffers.
  /// Replaces function (and module) once the parameters are divided; empty: they stay. Adds to `shards` what `divisions` do not cover.
  std::function<void(LayerGraph&, std::map<std::string, ParameterShard>& shards)> apply;
};

/// A plan that leaves the layer whole and says why.
LayerPlan whole(const std::string& reason);
using Rule = LayerPlan (*)(const LayerQuery&);
/// By LayerGraph::Layer::kind; null where there is no rule.
Rule rule_of(const std::string& kind);

/// The number of positions of an embedding with a fixed number of them, else 0.
int64_t num_positions(const LayerGraph::Layer& layer);

}  // namespace cohort::shard_rules

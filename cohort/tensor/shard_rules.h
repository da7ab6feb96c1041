#pragma once
// The table of tensor parallelism: what can become of a layer, by kind. Used by shard_graph.cpp alone.

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

/// How a value between two layers lies on the ranks. Whole: the same bits on all, and so is its gradient. Else each rank has its equal part
/// of one dimension, in rank order, and the gradient of that part.
enum class Lay { kWhole, kChannels, kFeatures, kPositions };

/// The dimension that is divided: 1 of {samples, channels, ...}, the last of {samples, ..., features}, 1 of {samples, positions, ...}.
int64_t divided_dim(Lay lay);

/// Equal parts of dimension `dim` of one of a layer's parameters or buffers ("weight", "token.weight").
struct Division {
  std::string name;
  int dim;
};

/// What a rule knows of a layer.
struct Question {
  size_t index = 0;
  const LayerGraph::Layer* layer = nullptr;
  std::vector<Lay> inputs;
  bool is_last = false;           ///< Its output is the model's.
  bool shares_weight = false;     ///< One of its parameters is another layer's too.
  bool divide_positions = false;  ///< Sequence parallelism was asked for, and the positions divide.
  int num_ranks = 1;
  Group group;  ///< For `apply`; of one rank where nothing is applied.

  bool divides(int64_t size) const { return size % num_ranks == 0; }
};

/// What becomes of a layer. As it is made: it stays as it is and works on whole inputs.
struct Plan {
  std::string placement = "whole", reason;
  bool needs_whole_inputs = true;  ///< Those that are divided must be gathered first.
  Lay output = Lay::kWhole;
  bool output_may_stay_divided = false;  ///< As the model's output: these are divided logits.
  std::vector<Division> divisions;       ///< Of its parameters and buffers.
  /// Replaces function (and module) once the parameters are divided; empty: they stay. Adds to `shards` what `divisions` do not say.
  std::function<void(LayerGraph&, std::map<std::string, ParameterShard>& shards)> apply;
};

/// A plan that leaves the layer whole and says why.
Plan whole(const std::string& reason);
/// A plan for a layer that works on each rank's part and hands on the same part.
Plan divided(Lay lay);
/// The plan's `apply` for a layer that keeps its module.
std::function<void(LayerGraph&, std::map<std::string, ParameterShard>&)> set_function(size_t index, LayerGraph::Function function);

using Rule = Plan (*)(const Question&);
/// By LayerGraph::Layer::kind; null where there is no rule.
Rule rule_of(const std::string& kind);

/// The positions that an embedding gives a fixed number of, or 0 where the layer is no such embedding.
int64_t num_positions(const LayerGraph::Layer& layer);

// In shard_rules.cpp, family by family.
Plan linear(const Question& question);
Plan convolution(const Question& question);
Plan pointwise(const Question& question);    ///< relu, gelu, ...: any part.
Plan per_channel(const Question& question);  ///< Pools: a part of the channels.
Plan flatten(const Question& question);
Plan global_mean(const Question& question);
Plan add(const Question& question);
Plan dropout(const Question& question);
Plan batch_norm(const Question& question);
Plan group_norm(const Question& question);
Plan layer_norm(const Question& question);
Plan embedding(const Question& question);
Plan transformer_block(const Question& question);

}  // namespace cohort::shard_rules

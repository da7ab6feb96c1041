#pragma once
// Tensor parallelism: the layers of a model divided between the ranks of a group, by a table from layer kind to placement, so that a
// model's own code does not change.
//
//   auto sharded = cohort::shard_graph(*graph, tensor_group);
//   loss = sharded.logits_divided ? cohort::divided_cross_entropy(graph->forward(x), target, tensor_group) : cross_entropy(...);
//
// See shard_graph.cpp for the rules and docs/algorithms/tensor_parallel.md for the story.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/checkpoint/parameter_shard.h"
#include "cohort/comm/group.h"

namespace cohort {

class LayerGraph;

struct TensorParallelOptions {
  bool sequence_parallel = false;  ///< Norms and layers between divided ones work on each rank's positions only.
};

/// The division of one layer.
struct LayerPlacement {
  std::string layer, kind;
  std::string placement;  ///< "column", "row", "outputs", "heads", "vocabulary", "channels out", "channels in", "divided" (works on a
                          ///< part), "whole".
  std::string reason;     ///< Why whole: no rule for this kind, or what does not divide; else "".
  bool takes_positions = false;  ///< Its input has this rank's positions only.
};

/// The result that shard_graph() would have.
struct ShardPlan {
  std::vector<LayerPlacement> placements;  ///< In the graph's order.
  bool logits_divided = false;             ///< As ShardedModel's.
  bool divides_positions = false;
  std::string sequence_reason;                  ///< As ShardedModel's.
  int64_t num_divided = 0, num_parameters = 0;  ///< Elements of divided parameters, and of all.
};

struct ShardedModel {
  std::map<std::string, ParameterShard> shards;  ///< By name in the graph, a tied parameter by each of its names; parameters and buffers
                                                 ///< that are not there are whole on each rank.
  std::vector<LayerPlacement> placements;        ///< In the graph's order.
  bool logits_divided = false;                   ///< The output has only this rank's classes in its last dimension.
  std::string sequence_reason;                   ///< Why positions stay whole despite sequence_parallel, or "".
};

/// Exchanges nothing; `graph`, which is whole, stays as it is.
COHORT_API ShardPlan plan_shards(const LayerGraph& graph, int num_ranks, const TensorParallelOptions& options = {});

/// Replaces modules and functions of `graph` (built alike on all ranks from one seed): divided parameters become this rank's part of the
/// whole ones, with their values. Names do not change, and a divided parameter stays the same tensor object (tied ones stay tied), except
/// in Transformer blocks, which are replaced. Layers for which there is no rule, or that do not divide by the number of ranks, stay whole:
/// every rank computes them alike, and the gradients of their parameters have the same bits on all. Call before the first forward, before
/// layers are dropped and before optimizers and hooks see the parameters; gradients are cleared. Collective calls happen only in forward
/// and backward. A group of one rank: nothing changes.
COHORT_API ShardedModel shard_graph(LayerGraph& graph, const Group& group, const TensorParallelOptions& options = {});

/// Cross-entropy of logits {..., classes / ranks} of which each rank holds its classes, in rank order; target {...} of int64 holds class
/// numbers of the whole (Error(kBadInput) for others). The mean over targets, or the sum; the same bits on all ranks; in float for half
/// precision. Cost: all-reduces of {...} and {2, ...} floats forward, none backward.
COHORT_API at::Tensor divided_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const Group& group, bool sum = false);

}  // namespace cohort

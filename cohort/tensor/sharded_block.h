#pragma once
// A Transformer block divided between ranks: attention by heads, the feed-forward network by hidden units; norms are replicated (or work on
// each rank's positions).

#include <map>
#include <memory>
#include <string>

#include "cohort/checkpoint/parameter_shard.h"
#include "cohort/comm/group.h"
#include "cohort/models/layers/transformer_block.h"

namespace cohort {

/// Why `block` cannot be divided by `num_ranks`, or "".
std::string why_not_divided(const TransformerBlockImpl& block, int num_ranks);

/// Whether a divided block divides its parameter `name` ("qkv.weight"): all except norms and the biases added after a sum.
bool is_divided_in_block(const std::string& name);

/// A copy of the part of `whole` that `shard` describes.
at::Tensor shard_values(const at::Tensor& whole, const ParameterShard& shard);

/// A module with the parameter names of TransformerBlockImpl and copies of this rank's part of its values, whose division is added to
/// `shards` under `prefix` + name. {samples, positions, width} -> the same, replicated; with `sequence_parallel` input and output have this
/// rank's positions only. A group of one rank has the whole block and no shards. Forward and backward are collective over `group`; not
/// thread-safe. Error(kBadInput) from the constructor for why_not_divided(), from forward for dropout in training without a step context
/// (the ranks' masks would differ).
class ShardedTransformerBlock : public torch::nn::Module {
 public:
  ShardedTransformerBlock(const TransformerBlockImpl& whole, const Group& group, bool sequence_parallel, const std::string& prefix,
                          std::map<std::string, ParameterShard>& shards);
  at::Tensor forward(const at::Tensor& input);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cohort

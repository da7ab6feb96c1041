#pragma once
// A Transformer block divided between ranks: attention by heads, the network by hidden units, with the norms whole (or each on its part of
// the positions).

#include <map>
#include <memory>
#include <string>

#include "cohort/checkpoint/parameter_shard.h"
#include "cohort/comm/group.h"
#include "cohort/models/layers/transformer_block.h"

namespace cohort {

/// Why `block` cannot be divided by `num_ranks`, or "".
std::string why_not_divided(const TransformerBlockImpl& block, int num_ranks);

/// Whether a divided block divides its parameter `name` ("qkv.weight"): not its norms, nor the biases that are added after a sum.
bool is_divided_in_block(const std::string& name);

/// A copy of the part of `whole` that `shard` describes.
at::Tensor shard_values(const at::Tensor& whole, const ParameterShard& shard);

/// A module with the same parameter names as TransformerBlockImpl, holding this rank's part of its values; adds how they are divided to
/// `shards` under `prefix` + name. {samples, positions, width} -> the same, the same on all ranks; with `sequence_parallel` input and
/// output hold this rank's positions ({samples, positions / ranks, width}). The parts are copies; `whole` stays as it is. A group of one
/// rank: all of the block, and nothing in `shards`. Forward and backward are collective over `group`; not thread-safe. Error(kBadInput)
/// from the constructor for why_not_divided, from forward for dropout in training without a step context (the ranks' masks would differ).
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

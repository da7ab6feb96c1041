// Transformer blocks: heads and hidden units are divided inside of the block (sharded_block.h); its input and output are whole, or a part
// of the positions.

#include <memory>
#include <utility>

#include "cohort/models/layers/transformer_block.h"
#include "cohort/tensor/shard_rules.h"
#include "cohort/tensor/sharded_block.h"

namespace cohort::shard_rules {

Plan transformer_block(const Question& question) {
  const auto block = std::dynamic_pointer_cast<TransformerBlockImpl>(question.layer->module);
  if (!block) return whole("its module is no block that is known");
  if (const std::string reason = why_not_divided(*block, question.num_ranks); !reason.empty()) return whole(reason);
  if (question.shares_weight) return whole("its weight is another layer's too");
  const Lay input = question.inputs.at(0);
  if (input != Lay::kWhole && input != Lay::kPositions) return {};
  Plan plan = divided(input);
  plan.placement = "heads";
  plan.apply = [block, input, index = question.index, group = question.group](LayerGraph& graph,
                                                                              std::map<std::string, ParameterShard>& shards) {
    auto part = std::make_shared<ShardedTransformerBlock>(*block, group, /*sequence_parallel=*/input == Lay::kPositions,
                                                          graph.layers()[index].name + ".", shards);
    graph.replace_layer(index, part, [part](const LayerGraph::Inputs& in) { return part->forward(in[0]); });
  };
  return plan;
}

}  // namespace cohort::shard_rules

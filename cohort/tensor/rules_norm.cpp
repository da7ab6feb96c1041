// Normalisation. Statistics of one channel, or of a group of channels, need no other rank where the channels are divided: weight, bias and
// running statistics are divided likewise, and nothing is exchanged. Layer norm works on all features of a position, so it takes whole
// values or, with sequence parallelism, a part of the positions: its weight is then the same on all ranks, and their gradients of it,
// each of its own positions, are summed (two all-reduces of `features` numbers in backward).

#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/normalization.h>

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"

namespace cohort::shard_rules {

Plan batch_norm(const Question& question) {
  if (question.inputs.at(0) != Lay::kChannels) return {};
  const torch::nn::Module* module = question.layer->module.get();
  if (dynamic_cast<const torch::nn::BatchNorm2dImpl*>(module) == nullptr && dynamic_cast<const GhostBatchNorm2dImpl*>(module) == nullptr)
    return whole("its module is no batch norm that is known");
  if (question.shares_weight) return whole("its weight is another layer's too");
  Plan plan = divided(Lay::kChannels);
  for (const auto& parameter : module->named_parameters()) plan.divisions.push_back({parameter.key(), 0});
  for (const auto& buffer : module->named_buffers()) {
    if (buffer.value().dim() == 1) plan.divisions.push_back({buffer.key(), 0});  // not the counter of batches
  }
  return plan;  // the module works on as many channels as its parameters have
}

Plan group_norm(const Question& question) {
  const auto norm = std::dynamic_pointer_cast<torch::nn::GroupNormImpl>(question.layer->module);
  if (!norm) return whole("its module is no torch::nn::GroupNorm");
  if (question.shares_weight) return whole("its weight is another layer's too");
  const int64_t num_groups = norm->options.num_groups();
  if (!question.divides(num_groups)) return whole(concat("its ", num_groups, " groups do not divide by ", question.num_ranks, " ranks"));
  if (question.inputs.at(0) != Lay::kChannels) return {};
  Plan plan = divided(Lay::kChannels);
  for (const auto& parameter : norm->named_parameters()) plan.divisions.push_back({parameter.key(), 0});
  plan.apply = set_function(question.index, [norm, my_groups = num_groups / question.num_ranks](const LayerGraph::Inputs& in) {
    return at::group_norm(in[0], my_groups, norm->weight, norm->bias, norm->options.eps());
  });
  return plan;
}

Plan layer_norm(const Question& question) {
  if (question.inputs.at(0) != Lay::kPositions) return {};
  const auto norm = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(question.layer->module);
  if (!norm) return whole("its module is no torch::nn::LayerNorm");
  if (norm->options.normalized_shape().size() != 1) return whole("it normalises over positions");
  Plan plan = divided(Lay::kPositions);
  plan.apply = set_function(question.index, [norm, group = question.group](const LayerGraph::Inputs& in) {
    const auto of_all_ranks = [&](const at::Tensor& parameter) {
      return parameter.defined() ? copy_to_ranks(parameter, group) : parameter;
    };
    const at::Tensor weight = of_all_ranks(norm->weight), bias = of_all_ranks(norm->bias);  // in this order on all ranks
    return at::layer_norm(in[0], norm->options.normalized_shape(), weight, bias, norm->options.eps());
  });
  return plan;
}

}  // namespace cohort::shard_rules

// Layers without parameters. What works on each element by itself takes any part; what works within a channel, a part of the channels.
// None of them exchanges anything.
//
// Dropout on a part: one process draws the factors of all elements of the whole tensor, so each rank draws them all and keeps its own.
// Cost: the whole tensor's draws and memory for them, on every rank; the alternative, gathering the tensor, costs that and an exchange.

#include <ATen/ops/ones.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include "cohort/models/layers/dropout.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"

namespace cohort::shard_rules {

Plan pointwise(const Question& question) {
  const auto& module = question.layer->module;
  if (module && !module->parameters().empty()) return whole("it has parameters, which its kind has not");
  const Lay input = question.inputs.at(0);
  return input == Lay::kWhole ? Plan{} : divided(input);
}

Plan per_channel(const Question& question) { return question.inputs.at(0) == Lay::kChannels ? divided(Lay::kChannels) : Plan{}; }

/// {samples, channels / ranks, h, w} -> {samples, channels h w / ranks}: channels are the slowest, so parts stay parts.
Plan flatten(const Question& question) {
  const auto* module = dynamic_cast<const torch::nn::FlattenImpl*>(question.layer->module.get());
  const bool keeps_samples = module == nullptr || (module->options.start_dim() == 1 && module->options.end_dim() == -1);
  return question.inputs.at(0) == Lay::kChannels && keeps_samples ? divided(Lay::kFeatures) : Plan{};
}

/// {samples, channels / ranks, h, w} -> {samples, channels / ranks}
Plan global_mean(const Question& question) { return question.inputs.at(0) == Lay::kChannels ? divided(Lay::kFeatures) : Plan{}; }

Plan add(const Question& question) {
  for (const Lay lay : question.inputs) {
    if (lay != question.inputs.front()) return {};
  }
  return question.inputs.front() == Lay::kWhole ? Plan{} : divided(question.inputs.front());
}

namespace {

/// `module`'s factors for the whole tensor, this rank's part, times the part.
template <typename Module>
Plan divided_dropout(const Question& question, const std::shared_ptr<Module>& module) {
  const Lay lay = question.inputs.at(0);
  Plan plan = divided(lay);
  plan.apply = set_function(question.index, [module, dim = divided_dim(lay), group = question.group](const LayerGraph::Inputs& in) {
    if (!module->is_training()) return module->forward(in[0]);
    std::vector<int64_t> shape = in[0].sizes().vec();
    shape[static_cast<size_t>(dim < 0 ? dim + in[0].dim() : dim)] *= group.size();
    const at::Tensor factors = module->forward(at::ones(shape, in[0].options()));
    return in[0] * slice_for_rank(factors, dim, group);
  });
  return plan;
}

}  // namespace

Plan dropout(const Question& question) {
  if (question.inputs.at(0) == Lay::kWhole) return {};
  if (auto ours = std::dynamic_pointer_cast<DropoutImpl>(question.layer->module)) return divided_dropout(question, ours);
  if (auto torchs = std::dynamic_pointer_cast<torch::nn::DropoutImpl>(question.layer->module)) return divided_dropout(question, torchs);
  return whole("its module is no dropout that is known");
}

}  // namespace cohort::shard_rules

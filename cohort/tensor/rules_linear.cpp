// Linear layers: y = x W^T + b, W {out, in}, for layers of kind "linear" with the parameters weight and bias.
//
//   column      W and b divided by rows: y_r = x W_r^T + b_r, the features of y divided. Backward: one all-reduce of the gradient of x.
//   outputs     the same for the last layer: each rank has some of the model's outputs (logits: of the classes).
//   row         W divided by columns, x_r the rank's features: y = sum over ranks of x_r W_r^T, + b once after the sum. One all-reduce
//               of y; backward: nothing, or one all-gather of the gradient where x was whole and is sliced.
//
// Divided input is taken by "row", so that column -> element-wise -> row costs one sum forward and one backward for two layers. Positions
// that are divided are gathered before "column", whose backward then sums and slices. Source: Shoeybi et al. 2019, section 3.

#include <ATen/ops/linear.h>
#include <torch/nn/module.h>

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"

namespace cohort::shard_rules {
namespace {

/// The parameters of y = x W^T + b, whoever holds them (a tied output layer is no torch::nn::Linear); weight undefined where the module has
/// others.
struct LinearParameters {
  at::Tensor weight, bias;
};

LinearParameters parameters_of(const torch::nn::Module* module) {
  if (module == nullptr) return {};
  const auto named = module->named_parameters();
  const at::Tensor* weight = named.find("weight");
  const at::Tensor* bias = named.find("bias");
  if (weight == nullptr || weight->dim() != 2 || named.size() != (bias ? 2U : 1U)) return {};
  return {*weight, bias ? *bias : at::Tensor()};
}

Plan column(const Question& question, const LinearParameters& linear, Lay input) {
  Plan plan = divided(Lay::kFeatures);
  plan.placement = question.is_last ? "outputs" : "column";
  plan.output_may_stay_divided = true;
  plan.divisions.push_back({"weight", 0});
  if (linear.bias.defined()) plan.divisions.push_back({"bias", 0});
  const bool gather_positions = input == Lay::kPositions;
  plan.apply = set_function(question.index, [=, group = question.group](const LayerGraph::Inputs& in) {
    const at::Tensor x = gather_positions ? gather_with_sum(in[0], divided_dim(Lay::kPositions), group) : copy_to_ranks(in[0], group);
    return at::linear(x, linear.weight, linear.bias);
  });
  return plan;
}

Plan row(const Question& question, const LinearParameters& linear, Lay input) {
  Plan plan = divided(Lay::kWhole);
  plan.placement = "row";
  plan.divisions.push_back({"weight", 1});
  const bool slice = input == Lay::kWhole;
  plan.apply = set_function(question.index, [=, group = question.group](const LayerGraph::Inputs& in) {
    const at::Tensor x = slice ? slice_for_rank(in[0], divided_dim(Lay::kFeatures), group) : in[0];
    const at::Tensor y = sum_over_ranks(at::linear(x, linear.weight), group);
    return linear.bias.defined() ? y + linear.bias.to(y.scalar_type()) : y;
  });
  return plan;
}

}  // namespace

Plan linear(const Question& question) {
  const LinearParameters linear = parameters_of(question.layer->module.get());
  if (!linear.weight.defined()) return whole("its parameters are not those of a linear layer");
  const int64_t num_outputs = linear.weight.size(0), num_inputs = linear.weight.size(1);
  const Lay input = question.inputs.at(0);
  // A shared weight is divided as the embedding's is, by rows.
  const bool row_possible = question.divides(num_inputs) && !question.shares_weight;
  if (input == Lay::kFeatures && row_possible) return row(question, linear, input);
  if ((input == Lay::kWhole || input == Lay::kPositions) && question.divides(num_outputs)) return column(question, linear, input);
  if (input == Lay::kWhole && row_possible) return row(question, linear, input);
  return whole(concat("neither its ", num_outputs, " outputs nor its ", num_inputs, " inputs can be divided by ", question.num_ranks,
                      " ranks", question.shares_weight ? " (the weight is another layer's too: outputs alone)" : ""));
}

}  // namespace cohort::shard_rules

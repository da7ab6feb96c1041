// Convolutions: W {out, in, height, width}, x {samples, in, ...}, y {samples, out, ...}.
//
//   channels out  W and b divided by output channels, x whole: the channels of y are divided. Backward: one all-reduce of the gradient of
//   x. channels in   W divided by input channels, x_r the rank's channels: y = sum over ranks of conv(x_r, W_r), + b once after the sum.
//   One
//                 all-reduce of y; backward: nothing, or one all-gather where x was whole and is sliced.
//
// The same pair as column and row of linear layers. Source: Dryden et al. 2019, "Channel and filter parallelism for large-scale CNN
// training", section 3.

#include <ATen/core/Tensor.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/modules/conv.h>

#include <variant>

#include "cohort/base/fail.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"

namespace cohort::shard_rules {
namespace {

using ConvolutionModule = std::shared_ptr<torch::nn::Conv2dImpl>;

Plan channels_out(const Question& question, const ConvolutionModule& convolution) {
  Plan plan = divided(Lay::kChannels);
  plan.placement = "channels out";
  plan.divisions.push_back({"weight", 0});
  if (convolution->bias.defined()) plan.divisions.push_back({"bias", 0});
  plan.apply = set_function(question.index, [convolution, group = question.group](const LayerGraph::Inputs& in) {
    return convolution->forward(copy_to_ranks(in[0], group));
  });
  return plan;
}

Plan channels_in(const Question& question, const ConvolutionModule& convolution, bool slice) {
  Plan plan = divided(Lay::kWhole);
  plan.placement = "channels in";
  plan.divisions.push_back({"weight", 1});
  plan.apply = set_function(question.index, [convolution, slice, group = question.group](const LayerGraph::Inputs& in) {
    const auto& options = convolution->options;
    const at::Tensor x = slice ? slice_for_rank(in[0], divided_dim(Lay::kChannels), group) : in[0];
    const at::Tensor mine = torch::nn::functional::detail::conv2d(x, convolution->weight, {}, options.stride(), options.padding(),
                                                                  options.dilation(), /*groups=*/1);
    const at::Tensor y = sum_over_ranks(mine, group);
    return convolution->bias.defined() ? y + convolution->bias.to(y.scalar_type()).view({-1, 1, 1}) : y;
  });
  return plan;
}

}  // namespace

Plan convolution(const Question& question) {
  const auto convolution = std::dynamic_pointer_cast<torch::nn::Conv2dImpl>(question.layer->module);
  if (!convolution) return whole("its module is no torch::nn::Conv2d");
  if (convolution->options.groups() != 1) return whole("its channels are in groups");
  if (question.shares_weight) return whole("its weight is another layer's too");
  // Other paddings than zeros are made by the module itself, which adds the bias.
  const bool zero_padding = std::holds_alternative<torch::enumtype::kZeros>(convolution->options.padding_mode());
  const int64_t num_outputs = convolution->weight.size(0), num_inputs = convolution->weight.size(1);
  const Lay input = question.inputs.at(0);
  const bool in_possible = zero_padding && question.divides(num_inputs);
  if (input == Lay::kChannels && in_possible) return channels_in(question, convolution, /*slice=*/false);
  if (input == Lay::kWhole && question.divides(num_outputs)) return channels_out(question, convolution);
  if (input == Lay::kWhole && in_possible) return channels_in(question, convolution, /*slice=*/true);
  return whole(concat("neither its ", num_outputs, " output channels nor its ", num_inputs, " input channels can be divided by ",
                      question.num_ranks, " ranks"));
}

}  // namespace cohort::shard_rules

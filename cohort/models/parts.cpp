#include "cohort/models/parts.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/layers/ghost_batch_norm.h"

namespace cohort {

ImageInput image_input(const ModelOptions& options, const std::string& model) {
  constexpr int64_t kSmallestSide = 8;
  const DataShape& data = options.data();
  const std::string needs = concat("model ", model, " needs pictures of at least ", kSmallestSide, " x ", kSmallestSide,
                                   name_settings(" (such as --data fashion-mnist)"));
  if (data.kind != DataShape::Kind::kImage) fail(ErrorCode::kBadInput, needs, ", but this data is text");
  if (data.input.size() != 3)
    fail(ErrorCode::kBadInput, needs, " with channels, height and width, but this data has ", data.input.size(), " dimensions");
  const ImageInput image{data.input[0], data.input[1], data.input[2], data.num_classes};
  if (image.channels < 1 || image.height < kSmallestSide || image.width < kSmallestSide)
    fail(ErrorCode::kBadInput, needs, ", but this data has ", image.channels, " x ", image.height, " x ", image.width);
  if (image.num_classes < 1)
    fail(ErrorCode::kBadInput, "model ", model, " needs data with labels, but this data has ", image.num_classes, " classes");
  return image;
}

int64_t numbers_input(const ModelOptions& options, const std::string& model) {
  const DataShape& data = options.data();
  if (data.kind != DataShape::Kind::kImage)
    fail(ErrorCode::kBadInput, "model ", model,
         name_settings(" needs pictures or other numbers (such as --data fashion-mnist, or csv:FILE), but this data is text"));
  if (data.input_elements() < 1 || data.num_classes < 1)
    fail(ErrorCode::kBadInput, "model ", model, " needs data with labels, but this data has ", data.input_elements(), " numbers and ",
         data.num_classes, " classes");
  return data.num_classes;
}

TextInput text_input(const ModelOptions& options, const std::string& model) {
  const DataShape& data = options.data();
  const std::string needs = "model " + model + name_settings(" needs text (such as --data text:FILE)");
  if (data.kind != DataShape::Kind::kText) fail(ErrorCode::kBadInput, needs, ", but this data is pictures");
  if (data.input.size() != 1 || data.input[0] < 1 || data.vocabulary() < 1)
    fail(ErrorCode::kBadInput, needs, " with a context and a vocabulary of at least 1, but this data has ", data.input.size(),
         " dimensions and ", data.vocabulary(), " symbols");
  return {data.input[0], data.vocabulary()};
}

int add_relu(LayerGraph& graph, const std::string& name, std::vector<int> inputs) {
  return graph.add(name, "relu", [](const LayerGraph::Inputs& in) { return at::relu(in[0]); }, std::move(inputs));
}

int add_max_pool(LayerGraph& graph, const std::string& name, int64_t kernel, int64_t stride, int64_t padding, std::vector<int> inputs) {
  const auto pool = [=](const LayerGraph::Inputs& in) {
    // Both numbers of the dilation: of int8 tensors LibTorch 2.13 reads two even where the default has one.
    return at::max_pool2d(in[0], {kernel, kernel}, {stride, stride}, {padding, padding}, {1, 1});
  };
  return graph.add(name, "maxpool2d", pool, std::move(inputs));
}

int add_flatten(LayerGraph& graph, const std::string& name) {
  return graph.add(name, "flatten", [](const LayerGraph::Inputs& in) { return at::flatten(in[0], 1); });
}

int add_global_mean(LayerGraph& graph, const std::string& name) {
  return graph.add(name, "mean", [](const LayerGraph::Inputs& in) { return at::mean(in[0], {2, 3}); });
}

int add_sum(LayerGraph& graph, const std::string& name, int left, int right) {
  return graph.add(name, "add", [](const LayerGraph::Inputs& in) { return at::add(in[0], in[1]); }, {left, right});
}

int add_concat(LayerGraph& graph, const std::string& name, std::vector<int> inputs) {
  return graph.add(name, "concat", [](const LayerGraph::Inputs& in) { return at::cat(in, 1); }, std::move(inputs));
}

int add_conv(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, int64_t kernel, int64_t stride, bool bias,
             std::vector<int> inputs) {
  const auto options = torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(bias);
  return graph.add(name, "conv2d", torch::nn::Conv2d(options), std::move(inputs));
}

int add_linear(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, bool bias) {
  return graph.add(name, "linear", torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(bias)));
}

Norm norm_option(const ModelOptions& options, const std::string& fallback, LayerGraph& graph) {
  Norm norm{options.text("norm", fallback, {"ghost", "batch", "group", "none"}), options.integer("ghost", 32)};
  if (norm.kind == "ghost") graph.set_sample_granularity(norm.ghost_size);
  if (norm.kind == "batch") graph.set_sample_granularity(LayerGraph::kWholeBatch);
  return norm;
}

int add_norm(LayerGraph& graph, const std::string& name, const Norm& norm, int64_t channels) {
  if (norm.kind == "ghost") return graph.add(name, "ghostbatchnorm2d", GhostBatchNorm2d(channels, norm.ghost_size));
  if (norm.kind == "batch") return graph.add(name, "batchnorm2d", torch::nn::BatchNorm2d(channels));
  if (norm.kind == "group") {
    const int64_t num_groups = std::gcd(INT64_C(32), channels);  // 32 as the group-norm paper has it, where the channels divide
    return graph.add(name, "groupnorm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(num_groups, channels)));
  }
  return static_cast<int>(graph.layers().size()) - 1;
}

void initialise_he(LayerGraph& graph) {
  const auto initialise = [](auto& module) {
    torch::nn::init::kaiming_uniform_(module.weight, 0.0, torch::kFanIn, torch::kReLU);
    if (module.bias.defined()) torch::nn::init::zeros_(module.bias);
  };
  for (const LayerGraph::Layer& layer : graph.layers()) {
    if (&layer == &graph.layers().back()) break;
    if (auto* conv = dynamic_cast<torch::nn::Conv2dImpl*>(layer.module.get())) initialise(*conv);
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(layer.module.get())) initialise(*linear);
  }
}

}  // namespace cohort

// ResNet-50 with ghost batch norm of 32 samples (batch-size study, workload "ResNet-50"; He et al. 2015, "Deep residual learning",
// table 1).
//
//   {n, c, h, w} -> stem {n, 64, h', w'} -> stages 1..4 of 3, 4, 6, 3 bottlenecks {n, 256, ..}, {n, 512, ../2}, {n, 1024, ../4},
//                   {n, 2048, ../8}
//                -> mean over positions {n, 2048} -> linear {n, classes}
//   stem imagenet: conv 7x7 stride 2, norm, ReLU, max-pool 3x3 stride 2 (h' = h/4); stem small: conv 3x3, norm, ReLU (h' = h)
//   bottleneck(x)  = ReLU(shortcut(x) + norm(conv1x1(ReLU(norm(conv3x3(ReLU(norm(conv1x1(x)))))))))
//   shortcut(x)    = x, or norm(conv1x1(x)) in the first block of a stage
//
// n samples, c channels. Residual connections are edges of the graph. Where we differ from the 2015 paper: the stride stands in the 3x3
// convolution, as in all later implementations. norm=none: convolutions have a bias, He initialisation, and each block's last convolution
// starts at zero, since otherwise each of the sixteen sums would double the signal.

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/parts.h"

namespace cohort::families {
namespace {

constexpr int64_t kExpansion = 4;  // a bottleneck's output has this many times its inner channels

int add_conv_norm(LayerGraph& graph, const std::string& prefix, const std::string& number, const Norm& norm, int64_t from, int64_t to,
                  int64_t kernel, int64_t stride, std::vector<int> inputs = {}) {
  add_conv(graph, prefix + "conv" + number, from, to, kernel, stride, /*bias=*/norm.kind == "none", std::move(inputs));
  return add_norm(graph, prefix + "norm" + number, norm, to);
}

/// Adds one block that reads layer `input` of `from` channels; returns the index of its output, of kExpansion * inner channels.
int add_bottleneck(LayerGraph& graph, const std::string& prefix, const Norm& norm, int input, int64_t from, int64_t inner, int64_t stride) {
  const int64_t to = kExpansion * inner;
  int shortcut = input;
  if (stride != 1 || from != to) shortcut = add_conv_norm(graph, prefix, "_shortcut", norm, from, to, 1, stride, {input});
  add_conv_norm(graph, prefix, "1", norm, from, inner, 1, 1, {input});
  add_relu(graph, prefix + "relu1");
  add_conv_norm(graph, prefix, "2", norm, inner, inner, 3, stride);
  add_relu(graph, prefix + "relu2");
  const int branch = add_conv_norm(graph, prefix, "3", norm, inner, to, 1, 1);
  add_sum(graph, prefix + "add", shortcut, branch);
  return add_relu(graph, prefix + "relu3");
}

/// "3-4-6-3" -> {3, 4, 6, 3}: one to eight stages of 1 to 999 blocks.
std::vector<int> parse_blocks(const std::string& text) {
  const std::vector<std::string> words = split(text, '-');
  std::vector<int> blocks;
  for (const std::string& word : words)
    if (const auto count = parse_integer(word); count && *count >= 1 && *count <= 999) blocks.push_back(static_cast<int>(*count));
  if (blocks.empty() || blocks.size() > 8 || blocks.size() != words.size())
    fail(ErrorCode::kBadInput, "model option blocks=", text, ": expected one to eight counts of 1 to 999 joined by '-', such as 3-4-6-3");
  return blocks;
}

void zero_last_convolutions(LayerGraph& graph) {
  for (const LayerGraph::Layer& layer : graph.layers()) {
    auto* conv = dynamic_cast<torch::nn::Conv2dImpl*>(layer.module.get());
    if (conv != nullptr && layer.name.ends_with("_conv3")) torch::nn::init::zeros_(conv->weight);
  }
}

}  // namespace

BuiltModel resnet50(const ModelOptions& options) {
  const ImageInput image = image_input(options, "resnet50");
  const int64_t width = options.integer("width", 64, 1, 1 << 20);
  const std::vector<int> blocks = parse_blocks(options.text("blocks", "3-4-6-3"));
  const std::string stem = options.text("stem", image.height < 64 ? "small" : "imagenet", {"imagenet", "small"});
  auto graph = std::make_shared<LayerGraph>();
  const Norm norm = norm_option(options, "ghost", *graph);

  const bool is_large = stem == "imagenet";
  add_conv_norm(*graph, "stem_", "", norm, image.channels, width, is_large ? 7 : 3, is_large ? 2 : 1);
  int last = add_relu(*graph, "stem_relu");
  if (is_large) last = add_max_pool(*graph, "stem_pool", 3, 2, 1);
  int64_t channels = width, inner = width;
  for (size_t stage = 0; stage < blocks.size(); ++stage, inner *= 2) {
    for (int block = 1; block <= blocks[stage]; ++block) {
      const std::string prefix = concat("stage", stage + 1, "_block", block, "_");
      last = add_bottleneck(*graph, prefix, norm, last, channels, inner, stage > 0 && block == 1 ? 2 : 1);
      channels = kExpansion * inner;
    }
  }
  add_global_mean(*graph, "mean");
  add_linear(*graph, "output", channels, image.num_classes);
  if (norm.kind == "none") {
    initialise_he(*graph);
    zero_last_convolutions(*graph);
  }
  return graph;
}

}  // namespace cohort::families

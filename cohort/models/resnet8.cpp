// ResNet-8 without batch norm (batch-size study, workload "ResNet-8"; blocks: He et al. 2016, "Identity mappings in deep residual
// networks").
//
//   {n, c, h, w} -> conv 3x3 {n, 16, h, w} -> block 16 {n, 16, h, w} -> block 32 {n, 32, h/2, w/2} -> block 64 {n, 64, h/4, w/4}
//                -> ReLU -> mean over positions {n, 64} -> linear {n, classes}
//   block(x)     = shortcut(x) + conv(ReLU(conv(ReLU(x)))), both 3x3, the first with the block's stride
//   shortcut(x)  = x, or where size and channels change: average-pool 2x2, then zero channels appended
//
// n samples, c channels; h/2 rounds up. Residual connections are edges of the graph. Where we differ: an odd side pools with a smaller last
// window; convolutions have a bias, as nothing else shifts; He initialisation.

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/constant_pad_nd.h>

#include "cohort/models/parts.h"

namespace cohort::families {

/// {n, from, h, w} -> {n, to, ceil(h / 2), ceil(w / 2)}: the shortcut where a block halves the picture.
static LayerGraph::Function pooled_shortcut(int64_t from, int64_t to) {
  return [=](const LayerGraph::Inputs& in) {
    const at::Tensor pooled = at::avg_pool2d(in[0], {2, 2}, {2, 2}, {0, 0}, /*ceil_mode=*/true);
    return at::constant_pad_nd(pooled, {0, 0, 0, 0, 0, to - from});
  };
}

/// Adds one block that reads layer `input`; returns the index of its output.
static int add_block(LayerGraph& graph, const std::string& name, int input, int64_t from, int64_t to, int64_t stride) {
  int shortcut = input;
  if (stride != 1) shortcut = graph.add(name + "_shortcut", "shortcut", pooled_shortcut(from, to), {input});
  add_relu(graph, name + "_relu1", {input});
  add_conv(graph, name + "_conv1", from, to, 3, stride);
  add_relu(graph, name + "_relu2");
  const int branch = add_conv(graph, name + "_conv2", to, to, 3);
  return add_sum(graph, name + "_add", shortcut, branch);
}

BuiltModel resnet8(const ModelOptions& options) {
  const ImageInput image = image_input(options, "resnet8");
  const int64_t width = options.integer("width", 16);
  auto graph = std::make_shared<LayerGraph>();
  int last = add_conv(*graph, "stem", image.channels, width, 3);
  last = add_block(*graph, "block1", last, width, width, 1);
  last = add_block(*graph, "block2", last, width, 2 * width, 2);
  last = add_block(*graph, "block3", last, 2 * width, 4 * width, 2);
  add_relu(*graph, "relu");
  add_global_mean(*graph, "mean");
  add_linear(*graph, "output", 4 * width, image.num_classes);
  initialise_he(*graph);
  return graph;
}

}  // namespace cohort::families

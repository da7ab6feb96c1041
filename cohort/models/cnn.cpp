// Simple CNN (batch-size study, workload "Simple CNN"; its narrow and wide variants are width=0.5 and width=2).
//
//   {n, c, h, w} -> conv 5x5 {n, 32, h, w} -> ReLU -> max-pool 2x2 {n, 32, h/2, w/2}
//                -> conv 5x5 {n, 64, h/2, w/2} -> ReLU -> max-pool 2x2 {n, 64, h/4, w/4}
//                -> flatten -> linear {n, 1024} -> ReLU -> linear {n, classes}
//
// n samples, c channels; convolutions keep the size ("same" padding), pooling rounds down. Where we differ: `width` scales the hidden layer
// too, and the weights have LibTorch's default initial values.

#include <algorithm>
#include <cmath>

#include "cohort/models/parts.h"

namespace cohort::families {

BuiltModel cnn(const ModelOptions& options) {
  const ImageInput image = image_input(options, "cnn");
  const double width = options.number("width", 1.0, 1e-3, 1e3);
  const auto scaled = [&](int64_t size) { return std::max<int64_t>(1, std::llround(width * static_cast<double>(size))); };
  const int64_t conv1 = options.integer("conv1", scaled(32));
  const int64_t conv2 = options.integer("conv2", scaled(64));
  const int64_t hidden = options.integer("hidden", scaled(1024));

  auto graph = std::make_shared<LayerGraph>();
  add_conv(*graph, "conv1", image.channels, conv1, 5);
  add_relu(*graph, "relu1");
  add_max_pool(*graph, "pool1", 2, 2);
  add_conv(*graph, "conv2", conv1, conv2, 5);
  add_relu(*graph, "relu2");
  add_max_pool(*graph, "pool2", 2, 2);
  add_flatten(*graph, "flatten");
  add_linear(*graph, "hidden", conv2 * (image.height / 2 / 2) * (image.width / 2 / 2), hidden);
  add_relu(*graph, "relu3");
  add_linear(*graph, "output", hidden, image.num_classes);
  return graph;
}

}  // namespace cohort::families

// The models of `cohort bench step`: layer for layer those of the usual Python script with torch.nn.Sequential, with the same parameter
// names
// ("1.weight") and order of initialisation, so that one seed gives both the same weights.
//
//   mlp        {n, 784} -> linear {n, width} -> ReLU -> linear {n, width} -> ReLU -> linear {n, 10}; mlp-small has width 128, mlp 1024
//   cnn-bench  {n, 1, 28, 28} -> [conv 3x3, ReLU, max-pool 2x2] x 2 {n, 64, 7, 7} -> linear {n, 1024} -> ReLU -> linear {n, 10}
//   gpt        {n, t} bytes -> embedding {n, t, 256} -> 4 blocks of 4 heads -> layer norm -> linear {n, t, 256} without bias
//
// n samples, t = 128 positions; the convolutions have 32 and 64 channels. Sizes of pictures, classes, vocabulary and context come from the
// data; those above are the benchmark's.

#include <torch/nn/modules/normalization.h>

#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/parts.h"

namespace cohort::families {
namespace {

BuiltModel build_mlp(const ModelOptions& options, const std::string& name, int64_t default_width) {
  const ImageInput image = image_input(options, name);
  const int64_t width = options.integer("width", default_width);
  auto graph = std::make_shared<LayerGraph>();
  add_flatten(*graph, "0");
  add_linear(*graph, "1", options.data().input_elements(), width);
  add_relu(*graph, "2");
  add_linear(*graph, "3", width, width);
  add_relu(*graph, "4");
  add_linear(*graph, "5", width, image.num_classes);
  return graph;
}

}  // namespace

BuiltModel cnn_bench(const ModelOptions& options) {
  const ImageInput image = image_input(options, "cnn-bench");
  auto graph = std::make_shared<LayerGraph>();
  add_conv(*graph, "0", image.channels, 32, 3);
  add_relu(*graph, "1");
  add_max_pool(*graph, "2", 2, 2);
  add_conv(*graph, "3", 32, 64, 3);
  add_relu(*graph, "4");
  add_max_pool(*graph, "5", 2, 2);
  add_flatten(*graph, "6");
  add_linear(*graph, "7", 64 * (image.height / 2 / 2) * (image.width / 2 / 2), 1024);
  add_relu(*graph, "8");
  add_linear(*graph, "9", 1024, image.num_classes);
  return graph;
}

BuiltModel gpt(const ModelOptions& options) {
  const TextInput text = text_input(options, "gpt");
  const int64_t num_layers = options.integer("layers", 4, 1, 1000);
  BlockOptions block;
  block.width = options.integer("width", 256, 1, 1 << 20);
  block.heads = options.integer("heads", 4);
  block.ff = 4 * block.width;
  auto graph = std::make_shared<LayerGraph>();
  int64_t index = 0;
  const auto next_name = [&] { return std::to_string(index++); };
  graph->add(next_name(), "embedding", ByteEmbedding(text.vocabulary, block.width, text.context));
  for (int64_t i = 0; i < num_layers; ++i) graph->add(next_name(), "transformerblock", TransformerBlock(block));
  graph->add(next_name(), "layernorm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({block.width})));
  add_linear(*graph, next_name(), block.width, text.vocabulary, /*bias=*/false);
  return graph;
}

BuiltModel mlp_small(const ModelOptions& options) { return build_mlp(options, "mlp-small", 128); }

BuiltModel mlp(const ModelOptions& options) { return build_mlp(options, "mlp", 1024); }

}  // namespace cohort::families

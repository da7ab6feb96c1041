#pragma once
// The built-in model families and their shared building blocks: checks of the data, layers without parameters, normalisation, initial
// values.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/registry.h"

namespace cohort {

struct ImageInput {
  int64_t channels, height, width, num_classes;
};
/// The data's shape for a model of pictures. Error(kBadInput) that says what `model` needs where the data is text or smaller than 8 x 8.
ImageInput image_input(const ModelOptions& options, const std::string& model);

/// Number of outputs (classes, or numbers of a regression) for a model that takes numbers of any shape. Error(kBadInput) for text.
int64_t numbers_input(const ModelOptions& options, const std::string& model);

struct TextInput {
  int64_t context, vocabulary;
};
/// The data's shape for a model of text. Error(kBadInput) for other data.
TextInput text_input(const ModelOptions& options, const std::string& model);

/// Layers that are plain functions; `inputs` as in LayerGraph::add(). Each returns the layer's index.
int add_relu(LayerGraph& graph, const std::string& name, std::vector<int> inputs = {});
int add_max_pool(LayerGraph& graph, const std::string& name, int64_t kernel, int64_t stride, int64_t padding = 0,
                 std::vector<int> inputs = {});
int add_flatten(LayerGraph& graph, const std::string& name);                          ///< {samples, ...} -> {samples, elements}
int add_global_mean(LayerGraph& graph, const std::string& name);                      ///< {samples, c, h, w} -> {samples, c}
int add_sum(LayerGraph& graph, const std::string& name, int left, int right);         ///< left + right: the end of a residual block
int add_concat(LayerGraph& graph, const std::string& name, std::vector<int> inputs);  ///< {samples, sum of c, ...}: joins branches

/// Square convolution with "same" padding (kernel / 2).
int add_conv(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, int64_t kernel, int64_t stride = 1, bool bias = true,
             std::vector<int> inputs = {});
int add_linear(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, bool bias = true);

/// The normalisation behind a convolution, from the options `norm` and `ghost`.
struct Norm {
  std::string kind;  ///< "ghost", "batch", "group" or "none"
  int64_t ghost_size = 0;
};
/// Reads the options and sets the graph's sample granularity to match.
Norm norm_option(const ModelOptions& options, const std::string& fallback, LayerGraph& graph);
/// Adds a normalisation layer behind the last layer, or nothing for "none". Returns the index of the last layer.
int add_norm(LayerGraph& graph, const std::string& name, const Norm& norm, int64_t channels);

/// He initialisation (uniform, fan-in, ReLU; zero bias) of every convolution and linear layer but the last, which computes the logits.
/// Deep stacks of ReLU without normalisation need it: LibTorch's default shrinks the signal about 2.4 times a layer.
void initialise_he(LayerGraph& graph);

/// Whether LibTorch can run an LSTM in `type` on this CPU under autocast: never in fp16; in bf16 where oneDNN has a kernel (AVX-512), which
/// the first call tries. Where it cannot, the `lstm` model computes that layer in fp32. Thread-safe. Defined in lstm.cpp.
bool cpu_has_lstm_in(at::ScalarType type);

}  // namespace cohort

/// Factories of the built-in families, each in the file of its name, which describes its options. To add one: its file, a line here and a
/// row in the table of registry.cpp.
namespace cohort::families {

BuiltModel fc(const ModelOptions& options);
BuiltModel cnn(const ModelOptions& options);
BuiltModel resnet8(const ModelOptions& options);
BuiltModel resnet50(const ModelOptions& options);
BuiltModel vgg11(const ModelOptions& options);
BuiltModel inception(const ModelOptions& options);
BuiltModel lstm(const ModelOptions& options);
BuiltModel transformer(const ModelOptions& options);

// In benchmark.cpp.
BuiltModel mlp_small(const ModelOptions& options);
BuiltModel mlp(const ModelOptions& options);
BuiltModel cnn_bench(const ModelOptions& options);
BuiltModel gpt(const ModelOptions& options);

}  // namespace cohort::families

#pragma once
// The built-in families and what they share: what kind of data they take, layers without parameters, normalisation, initial values.

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
/// The data's shape for a model of pictures. Error(kBadInput) that says what `model` needs, when the data is text or smaller than 8 x 8.
ImageInput image_input(const ModelOptions& options, const std::string& model);

/// Numbers of any shape: how many classes, or numbers of a regression, the data has. Error(kBadInput) for text, of `model`.
int64_t numbers_input(const ModelOptions& options, const std::string& model);

struct TextInput {
  int64_t context, vocabulary;
};
/// Likewise for a model of text.
TextInput text_input(const ModelOptions& options, const std::string& model);

/// Layers that are plain functions; `inputs` as LayerGraph::add has it. Each returns the layer's index.
int add_relu(LayerGraph& graph, const std::string& name, std::vector<int> inputs = {});
int add_max_pool(LayerGraph& graph, const std::string& name, int64_t kernel, int64_t stride, int64_t padding = 0,
                 std::vector<int> inputs = {});
int add_flatten(LayerGraph& graph, const std::string& name);                          ///< {samples, ...} -> {samples, elements}
int add_global_mean(LayerGraph& graph, const std::string& name);                      ///< {samples, c, h, w} -> {samples, c}
int add_sum(LayerGraph& graph, const std::string& name, int left, int right);         ///< left + right, the end of a residual block
int add_concat(LayerGraph& graph, const std::string& name, std::vector<int> inputs);  ///< {samples, sum of c, ...}: joins branches

/// Square convolution with "same" padding (kernel / 2) of `inputs` (the layer before when empty).
int add_conv(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, int64_t kernel, int64_t stride = 1, bool bias = true,
             std::vector<int> inputs = {});
int add_linear(LayerGraph& graph, const std::string& name, int64_t from, int64_t to, bool bias = true);

/// Which normalisation follows a convolution; from the options `norm` and `ghost`.
struct Norm {
  std::string kind;  ///< "ghost", "batch", "group" or "none"
  int64_t ghost_size = 0;
};
/// Reads the options and sets the graph's sample granularity to match.
Norm norm_option(const ModelOptions& options, const std::string& fallback, LayerGraph& graph);
/// Adds a normalisation layer after the layer added last; nothing for "none". Returns the index of the layer that is then the last.
int add_norm(LayerGraph& graph, const std::string& name, const Norm& norm, int64_t channels);

/// He initialisation (uniform, fan-in, ReLU; zero bias) of every convolution and linear layer but the last, which makes the logits: deep
/// stacks of ReLU without normalisation need it, for LibTorch's default shrinks the signal about 2.4 times a layer.
void initialise_he(LayerGraph& graph);

/// Whether LibTorch can run an LSTM in `type` on this CPU under autocast: never in fp16; in bf16 where oneDNN has a kernel (AVX-512), which
/// the first call tries. Where it can not, the `lstm` model computes that layer in fp32. Any thread. (In lstm.cpp.)
bool cpu_has_lstm_in(at::ScalarType type);

}  // namespace cohort

/// The built-in model families: each lives in the file of its name and says there what its options are. To add one: add its file, a line
/// here and a line in the table of registry.cpp.
namespace cohort::families {

ModelEntry fc();
ModelEntry cnn();
ModelEntry resnet8();
ModelEntry resnet50();
ModelEntry vgg11();
ModelEntry inception();
ModelEntry lstm();
ModelEntry transformer();

// The benchmark's four (benchmark.cpp).
ModelEntry mlp_small();
ModelEntry mlp();
ModelEntry cnn_bench();
ModelEntry gpt();

}  // namespace cohort::families

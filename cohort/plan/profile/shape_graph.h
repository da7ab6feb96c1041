#pragma once
// A model as shapes: layers with their products, what they move and what they keep, without a weight. The builder has the calls of
// models/parts.h, so that a family reads here as it does there. Torch-free. Internal to this room.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/model/model_options.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

/// A matrix product of one sample: {rows, inner} x {inner, columns}. Of a batch of b samples: b times as many rows.
struct Product {
  double rows = 0, columns = 0, inner = 0;
  double times = 1;             ///< Number of such products.
  bool of_activations = false;  ///< No weight in it (attention): both factors need a gradient in the input part of backward.
};

struct LayerShape {
  std::string name, kind;
  std::vector<int> inputs;           ///< Layers; -1 the model's input.
  std::vector<Product> products;     ///< Products of the forward.
  double moved_elements = 0;         ///< Read and written by what is no product, of a sample's forward.
  int64_t output_elements = 0;       ///< Per sample.
  int64_t whole_stash_elements = 0;  ///< The part of own_stash_elements that tp does not divide.
  int64_t own_stash_elements = 0;    ///< Per sample: saved for its backward besides its output.
  bool keeps_output = false;         ///< Its own backward needs its output (ReLU),
  bool keeps_input = false;          ///< or its inputs, which belong to those who made them.
  bool is_view = false;              ///< Its output is its input's memory.
  int64_t num_trained = 0, buffer_bytes = 0;
  int tied_to = -1;                    ///< The layer whose weight it uses.
  double num_kernels = 1;              ///< Kernels launched in forward.
  int64_t tensor_parts = 1;            ///< As in ProfiledLayer.
  int num_tensor_exchanges = 0;        ///< As in ProfiledLayer.
  bool divides_inner = false;          ///< Where divided: rows of the weight (its input is divided) instead of columns.
  bool divides_output = false;         ///< Where divided, its output is too.
  double tensor_replicated_moved = 0;  ///< The part of moved_elements that tp does not divide.
};

/// {channels, height, width} of a picture's value, {positions, width} of a text's, a vector has channels alone.
struct ValueShape {
  int64_t channels = 1, height = 1, width = 1;
  bool by_position = false;  ///< channels are positions, height is the width.
  int64_t elements() const { return channels * height * width; }
};

class ShapeGraph {
 public:
  explicit ShapeGraph(ValueShape input) : input_(input) {}

  int relu(const std::string& name, std::vector<int> inputs = {});
  int max_pool(const std::string& name, int64_t kernel, int64_t stride, int64_t padding = 0, std::vector<int> inputs = {});
  int flatten(const std::string& name);
  int global_mean(const std::string& name);
  int sum(const std::string& name, int left, int right);
  int concat_channels(const std::string& name, std::vector<int> inputs);
  int shortcut(const std::string& name, int64_t to, std::vector<int> inputs);  ///< ResNet-8's: pools, appends channels.
  int conv(const std::string& name, int64_t from, int64_t to, int64_t kernel, int64_t stride = 1, bool bias = true,
           std::vector<int> inputs = {});
  /// Applies to a vector, or to each position of {positions, width}.
  int linear(const std::string& name, int64_t from, int64_t to, bool bias = true);
  int norm(const std::string& name, const std::string& kind, int64_t channels);  ///< "none" adds nothing.
  int dropout(const std::string& name);
  int embedding(const std::string& name, int64_t vocabulary, int64_t width, int64_t positions);  ///< positions 0: no table of them.
  int lstm(const std::string& name, int64_t width, int64_t hidden);
  int transformer_block(const std::string& name, int64_t width, int64_t heads, int64_t ff, bool has_dropout);
  int layer_norm(const std::string& name, int64_t width);
  int tied_output(const std::string& name, int64_t vocabulary, int64_t width, int tied_to);

  const std::vector<LayerShape>& layers() const { return layers_; }
  const ValueShape& shape(int layer) const { return layer < 0 ? input_ : shapes_[static_cast<size_t>(layer)]; }
  int last() const { return static_cast<int>(layers_.size()) - 1; }
  /// Marks the weights that tp divides by output or by input; called after all layers were added. docs/algorithms/tensor_parallel.md.
  void divide_tensors();

 private:
  LayerShape& add(const std::string& name, const std::string& kind, std::vector<int> inputs, ValueShape output);

  ValueShape input_;
  std::vector<LayerShape> layers_;
  std::vector<ValueShape> shapes_;
};

// The built-in models by their shapes: each reads the options that its factory in models/ reads, and names its layers as that does
// (models/analytic_match_test.cpp compares them). Torch-free. Internal to this room.

struct AnalyticFamily {
  const char* name;
  bool is_text;
  ShapeGraph (*build)(const ModelOptions& options);
};
const std::vector<AnalyticFamily>& analytic_families();

}  // namespace cohort

// What each kind of layer computes, moves and keeps, for one sample. Element-wise layers read each input and write their output once;
// normalisations read twice. Stash is what LibTorch's autograd saves: layers that keep their input leave it to the layer that made it.
#include "cohort/plan/analytic/shape_graph.h"

#include <algorithm>
#include <numeric>

namespace cohort {

LayerShape& ShapeGraph::add(const std::string& name, const std::string& kind, std::vector<int> inputs, ValueShape output) {
  if (inputs.empty()) inputs = {last()};
  LayerShape layer{.name = name, .kind = kind, .inputs = std::move(inputs), .output_elements = output.elements()};
  layers_.push_back(std::move(layer));
  shapes_.push_back(output);
  return layers_.back();
}

int ShapeGraph::relu(const std::string& name, std::vector<int> inputs) {
  const ValueShape value = shape(inputs.empty() ? last() : inputs[0]);
  LayerShape& layer = add(name, "relu", std::move(inputs), value);
  layer.moved_elements = 2.0 * static_cast<double>(value.elements());
  layer.keeps_output = true;
  return last();
}

int ShapeGraph::max_pool(const std::string& name, int64_t kernel, int64_t stride, int64_t padding, std::vector<int> inputs) {
  const ValueShape from = shape(inputs.empty() ? last() : inputs[0]);
  const ValueShape to{from.channels, (from.height + 2 * padding - kernel) / stride + 1, (from.width + 2 * padding - kernel) / stride + 1};
  LayerShape& layer = add(name, "maxpool2d", std::move(inputs), to);
  layer.moved_elements = static_cast<double>(from.elements() + 3 * to.elements());
  layer.own_stash_elements = 2 * to.elements();  // 64-bit places of the largest.
  layer.keeps_input = true;
  return last();
}

int ShapeGraph::flatten(const std::string& name) {
  LayerShape& layer = add(name, "flatten", {}, {shape(last()).elements(), 1, 1});
  layer.is_view = true;
  return last();
}

int ShapeGraph::global_mean(const std::string& name) {
  const ValueShape from = shape(last());
  LayerShape& layer = add(name, "mean", {}, {from.channels, 1, 1});
  layer.moved_elements = static_cast<double>(from.elements());
  return last();
}

int ShapeGraph::sum(const std::string& name, int left, int right) {
  const ValueShape value = shape(left);
  LayerShape& layer = add(name, "add", {left, right}, value);
  layer.moved_elements = 3.0 * static_cast<double>(value.elements());
  return last();
}

int ShapeGraph::concat_channels(const std::string& name, std::vector<int> inputs) {
  ValueShape value = shape(inputs[0]);
  value.channels = 0;
  for (const int input : inputs) value.channels += shape(input).channels;
  LayerShape& layer = add(name, "concat", std::move(inputs), value);
  layer.moved_elements = 2.0 * static_cast<double>(value.elements());
  return last();
}

int ShapeGraph::shortcut(const std::string& name, int64_t to, std::vector<int> inputs) {
  const ValueShape from = shape(inputs[0]);
  const ValueShape value{to, (from.height + 1) / 2, (from.width + 1) / 2};
  LayerShape& layer = add(name, "shortcut", std::move(inputs), value);
  layer.moved_elements = static_cast<double>(from.elements() + 2 * value.elements());
  layer.num_kernels = 2;
  layer.keeps_input = true;
  return last();
}

int ShapeGraph::conv(const std::string& name, int64_t from, int64_t to, int64_t kernel, int64_t stride, bool bias,
                     std::vector<int> inputs) {
  const ValueShape value = shape(inputs.empty() ? last() : inputs[0]);
  const int64_t padding = kernel / 2;
  const ValueShape out{to, (value.height + 2 * padding - kernel) / stride + 1, (value.width + 2 * padding - kernel) / stride + 1};
  LayerShape& layer = add(name, "conv2d", std::move(inputs), out);
  layer.products = {{static_cast<double>(out.height * out.width), static_cast<double>(to), static_cast<double>(from * kernel * kernel)}};
  layer.moved_elements = static_cast<double>(value.elements() + out.elements());
  layer.keeps_input = true;
  layer.num_trained = to * from * kernel * kernel + (bias ? to : 0);
  layer.tensor_parts = to;
  return last();
}

int ShapeGraph::linear(const std::string& name, int64_t from, int64_t to, bool bias) {
  const ValueShape value = shape(last());
  const bool by_position = value.channels != from;  // {positions, width}
  const int64_t rows = by_position ? value.elements() / from : 1;
  LayerShape& layer = add(name, "linear", {}, by_position ? ValueShape{rows, to, 1} : ValueShape{to, 1, 1});
  layer.products = {{static_cast<double>(rows), static_cast<double>(to), static_cast<double>(from)}};
  layer.keeps_input = true;
  layer.num_trained = from * to + (bias ? to : 0);
  layer.tensor_parts = to;
  return last();
}

int ShapeGraph::norm(const std::string& name, const std::string& kind, int64_t channels) {
  if (kind == "none") return last();
  const ValueShape value = shape(last());
  const bool is_group = kind == "group";
  LayerShape& layer = add(name, kind == "ghost" ? "ghostbatchnorm2d" : kind == "batch" ? "batchnorm2d" : "groupnorm", {}, value);
  layer.moved_elements = 3.0 * static_cast<double>(value.elements());
  layer.keeps_input = true;
  layer.num_trained = 2 * channels;
  layer.buffer_bytes = is_group ? 0 : 2 * channels * 4 + 8;
  layer.num_kernels = 2;
  layer.tensor_parts = channels;
  return last();
}

int ShapeGraph::dropout(const std::string& name) {
  const ValueShape value = shape(last());
  LayerShape& layer = add(name, "dropout", {}, value);
  layer.moved_elements = 3.0 * static_cast<double>(value.elements());
  layer.own_stash_elements = value.elements();  // The mask.
  return last();
}

int ShapeGraph::embedding(const std::string& name, int64_t vocabulary, int64_t width, int64_t positions) {
  const int64_t context = shape(last()).elements();
  LayerShape& layer = add(name, "embedding", {}, {context, width, 1});
  layer.moved_elements = (positions > 0 ? 4.0 : 2.0) * static_cast<double>(context * width);
  layer.num_trained = vocabulary * width + positions * width;
  layer.tensor_parts = vocabulary;
  layer.num_tensor_exchanges = 1;
  return last();
}

int ShapeGraph::lstm(const std::string& name, int64_t width, int64_t hidden) {
  const int64_t context = shape(last()).channels;
  LayerShape& layer = add(name, "lstm", {}, {context, hidden, 1});
  // All inputs at once; the state position by position, which no larger batch of positions fills.
  layer.products = {{static_cast<double>(context), 4.0 * static_cast<double>(hidden), static_cast<double>(width)},
                    {1, 4.0 * static_cast<double>(hidden), static_cast<double>(hidden), static_cast<double>(context)}};
  layer.moved_elements = 20.0 * static_cast<double>(context * hidden);
  layer.own_stash_elements = 6 * context * hidden;  // Four gates, the cell, its tanh.
  layer.keeps_input = layer.keeps_output = true;
  layer.num_trained = 4 * hidden * (width + hidden) + 8 * hidden;
  layer.num_kernels = 3.0 * static_cast<double>(context);
  return last();
}

int ShapeGraph::transformer_block(const std::string& name, int64_t width, int64_t heads, int64_t ff, bool has_dropout) {
  const int64_t context = shape(last()).channels;
  const auto t = static_cast<double>(context), w = static_cast<double>(width), f = static_cast<double>(ff), a = static_cast<double>(heads);
  LayerShape& layer = add(name, "transformerblock", {}, {context, width, 1});
  layer.products = {{t, 3 * w, w}, {t, w, w}, {t, f, w}, {t, w, f}, {t, t, w / a, a, true}, {t, w / a, t, a, true}};
  // Two norms and two sums, the bias and GELU of the hidden units; scores stay in the kernel.
  layer.moved_elements = 12 * t * w + 4 * t * f;
  layer.tensor_replicated_moved = 12 * t * w;
  layer.own_stash_elements = context * (7 * width + 2 * ff) + context * heads + (has_dropout ? 2 * context * width : 0);
  layer.keeps_input = true;
  layer.num_trained = 4 * width * width + 2 * width * ff + (3 + 1 + 1) * width + ff + 4 * width;
  layer.num_kernels = 20;
  layer.tensor_parts = std::gcd(heads, ff);
  layer.num_tensor_exchanges = 2;
  return last();
}

int ShapeGraph::layer_norm(const std::string& name, int64_t width) {
  const ValueShape value = shape(last());
  LayerShape& layer = add(name, "layernorm", {}, value);
  layer.moved_elements = 3.0 * static_cast<double>(value.elements());
  layer.own_stash_elements = 2 * value.elements() / width;
  layer.keeps_input = true;
  layer.num_trained = 2 * width;
  return last();
}

int ShapeGraph::tied_output(const std::string& name, int64_t vocabulary, int64_t width, int tied_to) {
  linear(name, width, vocabulary, /*bias=*/false);
  layers_.back().num_trained = 0;
  layers_.back().tied_to = tied_to;
  return last();
}

void ShapeGraph::divide_tensors() {
  // Column, element-wise, row: a layer that reads a divided value sums its output, one that reads a whole one joins nothing.
  std::vector<bool> is_divided(layers_.size(), false);
  for (size_t i = 0; i < layers_.size(); ++i) {
    LayerShape& layer = layers_[i];
    const bool input_divided = std::any_of(layer.inputs.begin(), layer.inputs.end(),
                                           [&](int input) { return input >= 0 && is_divided[static_cast<size_t>(input)]; });
    if (layer.kind == "linear" || layer.kind == "conv2d") {
      const bool is_last = i + 1 == layers_.size();
      is_divided[i] = !input_divided && !is_last;
      layer.num_tensor_exchanges = input_divided ? 1 : 0;
      if (!input_divided && is_last) layer.num_tensor_exchanges = 0;
    } else if (layer.num_tensor_exchanges == 0 && layer.kind != "lstm" && layer.kind != "layernorm" && layer.kind != "shortcut") {
      is_divided[i] = input_divided;
      if (layer.num_trained == 0 || layer.kind == "layernorm") layer.tensor_parts = 1;
    }
  }
}

}  // namespace cohort

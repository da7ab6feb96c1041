// What each kind of layer computes, moves and keeps, for one sample. Element-wise layers read each input and write their output once;
// normalisations read twice. Stash is what LibTorch's autograd saves: layers that keep their input leave it to the layer that made it.
#include "cohort/plan/profile/shape_graph.h"

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
  const int64_t rows = value.by_position ? value.channels : 1;
  LayerShape& layer = add(name, "linear", {}, value.by_position ? ValueShape{rows, to, 1, true} : ValueShape{to, 1, 1});
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
  layer.buffer_bytes = is_group ? 0 : 2 * channels * 4 + (kind == "batch" ? 8 : 0);  // LibTorch counts its batches, too.
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
  LayerShape& layer = add(name, "embedding", {}, {context, width, 1, true});
  layer.moved_elements = (positions > 0 ? 4.0 : 2.0) * static_cast<double>(context * width);
  layer.num_trained = vocabulary * width + positions * width;
  layer.tensor_parts = vocabulary;
  layer.num_tensor_exchanges = 1;
  return last();
}

int ShapeGraph::lstm(const std::string& name, int64_t width, int64_t hidden) {
  const int64_t context = shape(last()).channels;
  LayerShape& layer = add(name, "lstm", {}, {context, hidden, 1, true});
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
  LayerShape& layer = add(name, "transformerblock", {}, {context, width, 1, true});
  layer.products = {{t, 3 * w, w}, {t, w, w}, {t, f, w}, {t, w, f}, {t, t, w / a, a, true}, {t, w / a, t, a, true}};
  // Two norms and two sums, the bias and GELU of the hidden units; scores stay in the kernel.
  layer.moved_elements = 12 * t * w + 4 * t * f;
  layer.tensor_replicated_moved = 12 * t * w;
  // Whole under tp: the norms' outputs, the first sum and the masks of dropout.
  layer.whole_stash_elements = context * 3 * width + (has_dropout ? 2 * context * width : 0);
  layer.own_stash_elements = layer.whole_stash_elements + context * (4 * width + 2 * ff + heads);
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
  // Column, element-wise, row: a product that reads a whole value divides its outputs, one that reads a divided one its inputs, and sums.
  // `divided`: the parts in which a layer's output lies; 1: whole.
  std::vector<int64_t> divided(layers_.size(), 1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    LayerShape& layer = layers_[i];
    int64_t parts = 0;  // The parts that all inputs have in common.
    bool alike = true;
    for (const int input : layer.inputs) {
      const int64_t its = input < 0 ? 1 : divided[static_cast<size_t>(input)];
      alike = alike && (parts == 0 || parts == its);
      parts = parts == 0 ? its : std::gcd(parts, its);
    }
    const bool is_product = layer.kind == "linear" || layer.kind == "conv2d";
    const bool follows = layer.kind == "relu" || layer.kind == "maxpool2d" || layer.kind == "flatten" || layer.kind == "mean" ||
                         layer.kind == "dropout" || layer.kind == "add" || layer.kind.find("norm2d") != std::string::npos ||
                         layer.kind == "groupnorm";
    if (is_product && parts > 1) {
      layer.tensor_parts = parts;
      layer.divides_inner = true;
      layer.num_tensor_exchanges = 1;
    } else if (is_product) {
      layer.divides_output = i + 1 < layers_.size();
      if (layer.divides_output) divided[i] = layer.tensor_parts;
    } else if (follows && alike && parts > 1) {
      layer.tensor_parts = parts;
      layer.divides_output = true;
      divided[i] = parts;
    } else if (follows) {
      layer.tensor_parts = 1;
    }
    // Values that lie in parts where a layer needs them whole are joined first: counted as one exchange.
    if (!is_product && !layer.divides_output && (parts > 1 || !alike)) {
      ++layer.num_tensor_exchanges;
      if (layer.tensor_parts == 1) layer.tensor_parts = std::max<int64_t>(parts, 1);
    }
  }
}

}  // namespace cohort

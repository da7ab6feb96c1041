// What each kind of layer computes, moves and keeps, for one sample. Element-wise layers read each input and write their output once;
// normalisations read twice. Stash is what LibTorch's autograd saves: layers that keep their input leave it to the layer that made it.
#include "cohort/plan/profile/shape_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

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
  layer.own_stash_elements = 2 * to.elements();  // 64-bit indices of the maxima.
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
  // `divided` is the number of parts of a layer's output; 1: whole.
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
    // A divided value that a layer needs whole is gathered first, which counts as one exchange.
    if (!is_product && !layer.divides_output && (parts > 1 || !alike)) {
      ++layer.num_tensor_exchanges;
      if (layer.tensor_parts == 1) layer.tensor_parts = std::max<int64_t>(parts, 1);
    }
  }
}

// One function per model family, described in models/. A new family needs a function and a line in the table at the end.

namespace {

ValueShape image_of(const ModelOptions& options) {
  const DataShape& data = options.data();
  return {data.input[0], data.input[1], data.input[2]};
}
int64_t classes_of(const ModelOptions& options) { return options.data().num_classes; }
int64_t context_of(const ModelOptions& options) { return options.data().input[0]; }

ShapeGraph fc(const ModelOptions& options) {
  const int64_t hidden = options.integer("hidden", 1024), num_layers = options.integer("layers", 1, 0, 1000);
  ShapeGraph graph(image_of(options));
  graph.flatten("flatten");
  int64_t features = image_of(options).elements();
  for (int64_t i = 1; i <= num_layers; ++i) {
    graph.linear(concat("hidden", i), features, hidden);
    graph.relu(concat("relu", i));
    features = hidden;
  }
  graph.linear("output", features, classes_of(options));
  return graph;
}

/// Two convolutions with ReLU and pooling, two linear layers; `names` are those of its ten layers.
ShapeGraph small_cnn(const ModelOptions& options, const std::vector<std::string>& names, int64_t kernel, int64_t conv1, int64_t conv2,
                     int64_t hidden) {
  const ValueShape image = image_of(options);
  ShapeGraph graph(image);
  graph.conv(names[0], image.channels, conv1, kernel);
  graph.relu(names[1]);
  graph.max_pool(names[2], 2, 2);
  graph.conv(names[3], conv1, conv2, kernel);
  graph.relu(names[4]);
  graph.max_pool(names[5], 2, 2);
  graph.flatten(names[6]);
  graph.linear(names[7], conv2 * (image.height / 2 / 2) * (image.width / 2 / 2), hidden);
  graph.relu(names[8]);
  graph.linear(names[9], hidden, classes_of(options));
  return graph;
}

ShapeGraph cnn(const ModelOptions& options) {
  const double width = options.number("width", 1.0, 1e-3, 1e3);
  const auto scaled = [&](int64_t size) { return std::max<int64_t>(1, std::llround(width * static_cast<double>(size))); };
  const int64_t conv1 = options.integer("conv1", scaled(32)), conv2 = options.integer("conv2", scaled(64));
  const int64_t hidden = options.integer("hidden", scaled(1024));
  return small_cnn(options, {"conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten", "hidden", "relu3", "output"}, 5, conv1, conv2,
                   hidden);
}

ShapeGraph cnn_bench(const ModelOptions& options) {
  return small_cnn(options, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, 3, 32, 64, 1024);
}

ShapeGraph mlp_of(const ModelOptions& options, int64_t default_width) {
  const int64_t width = options.integer("width", default_width);
  ShapeGraph graph(image_of(options));
  graph.flatten("0");
  graph.linear("1", image_of(options).elements(), width);
  graph.relu("2");
  graph.linear("3", width, width);
  graph.relu("4");
  graph.linear("5", width, classes_of(options));
  return graph;
}

ShapeGraph vgg11(const ModelOptions& options) {
  const ValueShape image = image_of(options);
  const int64_t width = options.integer("width", 64, 1, 1 << 20), hidden = options.integer("hidden", image.height < 64 ? 512 : 4096);
  const double dropout = options.number("dropout", 0.0, 0.0, 0.999);
  const std::string norm = options.text("norm", "none", {"ghost", "batch", "group", "none"});
  options.integer("ghost", 32);
  struct Stage {
    int64_t multiplier, num_convs;
  };
  ShapeGraph graph(image);
  int64_t channels = image.channels, height = image.height, breadth = image.width;
  int conv = 0, pool = 0;
  for (const Stage stage : {Stage{1, 1}, {2, 1}, {4, 2}, {8, 2}, {8, 2}}) {
    for (int64_t i = 0; i < stage.num_convs; ++i) {
      const std::string number = std::to_string(++conv);
      graph.conv("conv" + number, channels, stage.multiplier * width, 3, 1, norm == "none" || norm == "group");
      channels = stage.multiplier * width;
      graph.norm("norm" + number, norm, channels);
      graph.relu("relu" + number);
    }
    if (height < 2 || breadth < 2) continue;
    graph.max_pool("pool" + std::to_string(++pool), 2, 2);
    height /= 2, breadth /= 2;
  }
  graph.flatten("flatten");
  int64_t features = channels * height * breadth;
  for (int i = 1; i <= 2; ++i) {
    graph.linear(concat("hidden", i), features, hidden);
    graph.relu(concat("hidden_relu", i));
    if (dropout > 0.0) graph.dropout(concat("dropout", i));
    features = hidden;
  }
  graph.linear("output", features, classes_of(options));
  return graph;
}

ShapeGraph resnet8(const ModelOptions& options) {
  const int64_t width = options.integer("width", 16);
  ShapeGraph graph(image_of(options));
  int last = graph.conv("stem", image_of(options).channels, width, 3);
  const auto block = [&](const std::string& name, int64_t from, int64_t to, int64_t stride) {
    const int shortcut = stride != 1 ? graph.shortcut(name + "_shortcut", to, {last}) : last;
    graph.relu(name + "_relu1", {last});
    graph.conv(name + "_conv1", from, to, 3, stride);
    graph.relu(name + "_relu2");
    const int branch = graph.conv(name + "_conv2", to, to, 3);
    last = graph.sum(name + "_add", shortcut, branch);
  };
  block("block1", width, width, 1);
  block("block2", width, 2 * width, 2);
  block("block3", 2 * width, 4 * width, 2);
  graph.relu("relu");
  graph.global_mean("mean");
  graph.linear("output", 4 * width, classes_of(options));
  return graph;
}

std::vector<int> blocks_of(const std::string& text) {
  std::vector<int> blocks;
  for (const std::string& part : split(text, '-')) {
    const auto count = parse_integer(part);
    if (!count || *count < 1 || *count > 999 || blocks.size() == 8)
      fail(ErrorCode::kBadInput, "model option blocks=", text, ": expected one to eight counts of 1 to 999 joined by '-', such as 3-4-6-3");
    blocks.push_back(static_cast<int>(*count));
  }
  return blocks;
}

ShapeGraph resnet50(const ModelOptions& options) {
  const ValueShape image = image_of(options);
  const int64_t width = options.integer("width", 64, 1, 1 << 20);
  const std::vector<int> blocks = blocks_of(options.text("blocks", "3-4-6-3"));
  const bool is_large = options.text("stem", image.height < 64 ? "small" : "imagenet", {"imagenet", "small"}) == "imagenet";
  const std::string norm = options.text("norm", "ghost", {"ghost", "batch", "group", "none"});
  options.integer("ghost", 32);
  ShapeGraph graph(image);
  const auto conv_norm = [&](const std::string& prefix, const std::string& number, int64_t from, int64_t to, int64_t kernel, int64_t stride,
                             std::vector<int> inputs = {}) {
    graph.conv(prefix + "conv" + number, from, to, kernel, stride, norm == "none", std::move(inputs));
    return graph.norm(prefix + "norm" + number, norm, to);
  };
  conv_norm("stem_", "", image.channels, width, is_large ? 7 : 3, is_large ? 2 : 1);
  int last = graph.relu("stem_relu");
  if (is_large) last = graph.max_pool("stem_pool", 3, 2, 1);
  int64_t channels = width, inner = width;
  for (size_t stage = 0; stage < blocks.size(); ++stage, inner *= 2)
    for (int block = 1; block <= blocks[stage]; ++block) {
      const std::string prefix = concat("stage", stage + 1, "_block", block, "_");
      const int64_t to = 4 * inner, stride = stage > 0 && block == 1 ? 2 : 1;
      const int shortcut = stride != 1 || channels != to ? conv_norm(prefix, "_shortcut", channels, to, 1, stride, {last}) : last;
      conv_norm(prefix, "1", channels, inner, 1, 1, {last});
      graph.relu(prefix + "relu1");
      conv_norm(prefix, "2", inner, inner, 3, stride);
      graph.relu(prefix + "relu2");
      const int branch = conv_norm(prefix, "3", inner, to, 1, 1);
      graph.sum(prefix + "add", shortcut, branch);
      last = graph.relu(prefix + "relu3");
      channels = to;
    }
  graph.global_mean("mean");
  graph.linear("output", channels, classes_of(options));
  return graph;
}

ShapeGraph inception(const ModelOptions& options) {
  const ValueShape image = image_of(options);
  const int64_t width = options.integer("width", 16, 1, 1 << 20), num_blocks = options.integer("blocks", 2, 1, 1000);
  const std::string norm = options.text("norm", "none", {"ghost", "batch", "group", "none"});
  options.integer("ghost", 32);
  const auto part = [&](int64_t numerator, int64_t denominator) { return std::max<int64_t>(1, width * numerator / denominator); };
  ShapeGraph graph(image);
  const auto conv = [&](const std::string& prefix, int64_t from, int64_t to, int64_t kernel, std::vector<int> inputs = {}) {
    graph.conv(prefix + "_conv", from, to, kernel, 1, norm == "none" || norm == "group", std::move(inputs));
    graph.norm(prefix + "_norm", norm, to);
    return graph.relu(prefix + "_relu");
  };
  int64_t channels = 3 * width, height = image.height / 2, breadth = image.width / 2;
  conv("stem", image.channels, channels, 3);
  int last = graph.max_pool("stem_pool", 2, 2);
  for (int64_t block = 1; block <= num_blocks; ++block) {
    const std::string name = concat("block", block);
    const int ones = conv(name + "_1x1", channels, width, 1, {last});
    conv(name + "_3x3_reduce", channels, part(3, 2), 1, {last});
    const int threes = conv(name + "_3x3", part(3, 2), 2 * width, 3);
    conv(name + "_5x5_reduce", channels, part(1, 4), 1, {last});
    const int fives = conv(name + "_5x5", part(1, 4), part(1, 2), 5);
    graph.max_pool(name + "_pool", 3, 1, 1, {last});
    const int pooled = conv(name + "_pool", channels, part(1, 2), 1);
    last = graph.concat_channels(name + "_join", {ones, threes, fives, pooled});
    channels = 3 * width + 2 * part(1, 2);
    if (block % 2 == 0 && block < num_blocks && height >= 2 && breadth >= 2) {
      last = graph.max_pool(concat("pool", block / 2), 2, 2);
      height /= 2, breadth /= 2;
    }
  }
  graph.global_mean("mean");
  graph.linear("output", channels, classes_of(options));
  return graph;
}

ShapeGraph lstm(const ModelOptions& options) {
  const int64_t width = options.integer("width", 128), hidden = options.integer("hidden", 256);
  const double dropout = options.number("dropout", 0.0, 0.0, 0.999);
  ShapeGraph graph({context_of(options), 1, 1});
  graph.embedding("embedding", classes_of(options), width, 0);
  graph.lstm("lstm", width, hidden);
  if (dropout > 0.0) graph.dropout("dropout");
  graph.linear("output", hidden, classes_of(options));
  return graph;
}

void check_heads(int64_t width, int64_t heads) {
  if (heads < 1 || width % heads != 0)
    fail(ErrorCode::kBadInput, "a Transformer's heads must divide its width, but heads is ", heads, " and width is ", width);
}

ShapeGraph transformer(const ModelOptions& options) {
  const int64_t num_layers = options.integer("layers", 2, 1, 1000), width = options.integer("width", 64, 1, 1 << 20);
  const int64_t heads = options.integer("heads", 2), ff = options.integer("ff", 4 * width);
  const double dropout = options.number("dropout", 0.0, 0.0, 0.999);
  const bool tied = options.integer("tied", 0, 0, 1) == 1;
  check_heads(width, heads);
  ShapeGraph graph({context_of(options), 1, 1});
  const int embedding = graph.embedding("embedding", classes_of(options), width, context_of(options));
  if (dropout > 0.0) graph.dropout("dropout");
  for (int64_t i = 1; i <= num_layers; ++i) graph.transformer_block(concat("block", i), width, heads, ff, dropout > 0.0);
  graph.layer_norm("norm", width);
  if (tied) graph.tied_output("output", classes_of(options), width, embedding);
  else graph.linear("output", width, classes_of(options), /*bias=*/false);
  return graph;
}

ShapeGraph gpt(const ModelOptions& options) {
  const int64_t num_layers = options.integer("layers", 4, 1, 1000), width = options.integer("width", 256, 1, 1 << 20);
  const int64_t heads = options.integer("heads", 4);
  check_heads(width, heads);
  ShapeGraph graph({context_of(options), 1, 1});
  int64_t index = 0;
  graph.embedding(concat(index++), classes_of(options), width, context_of(options));
  for (int64_t i = 0; i < num_layers; ++i) graph.transformer_block(concat(index++), width, heads, 4 * width, false);
  graph.layer_norm(concat(index++), width);
  graph.linear(concat(index++), width, classes_of(options), /*bias=*/false);
  return graph;
}

}  // namespace

const std::vector<AnalyticFamily>& analytic_families() {
  static const std::vector<AnalyticFamily> kFamilies = {
      {"fc", false, fc},
      {"cnn", false, cnn},
      {"resnet8", false, resnet8},
      {"resnet50", false, resnet50},
      {"vgg11", false, vgg11},
      {"inception", false, inception},
      {"lstm", true, lstm},
      {"transformer", true, transformer},
      {"mlp-small", false, [](const ModelOptions& options) { return mlp_of(options, 128); }},
      {"mlp", false, [](const ModelOptions& options) { return mlp_of(options, 1024); }},
      {"cnn-bench", false, cnn_bench},
      {"gpt", true, gpt},
  };
  return kFamilies;
}

}  // namespace cohort

// One function per model family, described in models/. A new family needs a function and a line in the table at the end.
#include "cohort/plan/profile/shape_graph.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
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

ShapeGraph cnn(const ModelOptions& options) {
  const ValueShape image = image_of(options);
  const double width = options.number("width", 1.0, 1e-3, 1e3);
  const auto scaled = [&](int64_t size) { return std::max<int64_t>(1, std::llround(width * static_cast<double>(size))); };
  const int64_t conv1 = options.integer("conv1", scaled(32)), conv2 = options.integer("conv2", scaled(64));
  const int64_t hidden = options.integer("hidden", scaled(1024));
  ShapeGraph graph(image);
  graph.conv("conv1", image.channels, conv1, 5);
  graph.relu("relu1");
  graph.max_pool("pool1", 2, 2);
  graph.conv("conv2", conv1, conv2, 5);
  graph.relu("relu2");
  graph.max_pool("pool2", 2, 2);
  graph.flatten("flatten");
  graph.linear("hidden", conv2 * (image.height / 2 / 2) * (image.width / 2 / 2), hidden);
  graph.relu("relu3");
  graph.linear("output", hidden, classes_of(options));
  return graph;
}

ShapeGraph cnn_bench(const ModelOptions& options) {
  const ValueShape image = image_of(options);
  ShapeGraph graph(image);
  graph.conv("0", image.channels, 32, 3);
  graph.relu("1");
  graph.max_pool("2", 2, 2);
  graph.conv("3", 32, 64, 3);
  graph.relu("4");
  graph.max_pool("5", 2, 2);
  graph.flatten("6");
  graph.linear("7", 64 * (image.height / 2 / 2) * (image.width / 2 / 2), 1024);
  graph.relu("8");
  graph.linear("9", 1024, classes_of(options));
  return graph;
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

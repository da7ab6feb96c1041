#include "cohort/compress/layer_facts.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>

#include "cohort/base/random.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/parts.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

/// A bell around zero with deviation 1, and `outliers` values of 100.
Histogram bell(int outliers, double least = -100) {
  Histogram values({least, 100});
  std::vector<float> drawn;
  for (uint64_t i = 0; i < 20'000; ++i) {
    double sum = 0;  // Of twelve even numbers: deviation 1.
    for (uint64_t j = 0; j < 12; ++j) sum += static_cast<double>(random_bits(9, i, j) >> 11) * 0x1.0p-53;
    drawn.push_back(static_cast<float>(std::max(sum - 6, least)));
  }
  drawn.insert(drawn.end(), static_cast<size_t>(outliers), 100.0F);
  values.add(drawn);
  return values;
}

TEST_CASE("a histogram counts all that is a number") {
  Histogram values({-1, 3});
  const std::vector<float> drawn = {-1, 0, 3, 7, -9, NAN};
  values.add(drawn);
  CHECK(values.total() == 5);
  CHECK(values.counts().front() == 2);  // -1 and what lies below.
  CHECK(values.counts().back() == 2);   // 3 and what lies above.
  CHECK(Histogram({2, 5}).range().low == 0);
  CHECK(Histogram({-5, -2}).range().high == 0);
  CHECK(Histogram({0, 0}).width() > 0);
}

TEST_CASE("every method gives a range within what was seen, with zero in it") {
  for (const RangeMethod& method : range_methods())
    for (const Histogram& values : {bell(0), bell(1), bell(3, 0), Histogram({0, 0})}) {
      CAPTURE(method.name);
      Histogram filled = values;
      const std::vector<float> zeros(10);
      filled.add(zeros);
      const ValueRange range = method.choose(filled);
      CHECK(range.low <= 0);
      CHECK(range.high >= 0);
      CHECK(range.high > range.low);
      CHECK(range.low >= filled.range().low - 1e-9);
      CHECK(range.high <= filled.range().high + 1e-9);
    }
}

TEST_CASE("one outlier among 20,000 widens min-max and no other") {
  const Histogram values = bell(1);
  CHECK(find_range_method("min-max").choose(values).high == 100);
  const double inner = find_range_method("percentile").choose(values).high;
  CHECK(inner < 20);
  CHECK(inner > 2);
  // 100^2 of one value outweighs the rounding of 20,000; of numbers twice as many it does not.
  Histogram even({0, 100});
  std::vector<float> drawn;
  for (int i = 0; i < 100'000; ++i) drawn.push_back(static_cast<float>(i % 1000) * 0.03F);
  drawn.push_back(40);
  even.add(drawn);
  const double found = find_range_method("mse").choose(even).high;
  CHECK(found >= 29);
  CHECK(found <= 41);
}

TEST_CASE("the range of the least squared error has no neighbour with less") {
  const Histogram values = bell(0, 0);
  const auto error_of_range = [&](double high) {
    const double step = high / kActivationSteps;
    double sum = 0;
    for (size_t bin = 0; bin < Histogram::kNumBins; ++bin) {
      const double value = values.center(bin);
      const double nearest = std::clamp(std::round(value / step), 0.0, 127.0) * step;
      sum += values.counts()[bin] * (value - nearest) * (value - nearest);
    }
    return sum;
  };
  const double chosen = find_range_method("mse").choose(values).high;
  CHECK(error_of_range(chosen) < 0.5 * error_of_range(100));
  CHECK(error_of_range(chosen) < error_of_range(chosen / 2));
  CHECK(error_of_range(chosen) < error_of_range(chosen * 4));
}

TEST_CASE("an unknown method is refused by name") {
  CHECK(find_range_method("mse").name == "mse");
  CHECK(error_of([] { find_range_method("percentil"); }).find("did you mean 'percentile'") != std::string::npos);
}

}  // namespace

namespace {

using Does = LayerFacts::Does;

std::vector<LayerFacts> facts_of(LayerGraph& graph, const std::vector<int64_t>& shape) {
  torch::manual_seed(4);
  graph.eval();
  return examine_layers(graph, at::randn(shape));
}

TEST_CASE("what layers do, and what they can absorb") {
  LayerGraph graph;
  add_conv(graph, "conv", 2, 4, 3, 1, /*bias=*/false);             // 0
  add_norm(graph, "norm", {.kind = "ghost", .ghost_size = 4}, 4);  // 1
  add_relu(graph, "relu");                                         // 2
  const int pool = add_max_pool(graph, "pool", 2, 2);              // 3
  const int branch = add_conv(graph, "branch", 4, 4, 3);           // 4
  add_sum(graph, "sum", pool, branch);                             // 5
  add_relu(graph, "relu2");                                        // 6
  graph.add("dropout", "dropout", Dropout(0.5, 0));                // 7
  add_global_mean(graph, "mean");                                  // 8
  add_linear(graph, "output", 4, 3);                               // 9
  const std::vector<LayerFacts> facts = facts_of(graph, {6, 2, 10, 10});
  const std::vector<Does> wanted = {Does::kConvolution, Does::kNorm, Does::kRelu,    Does::kThrough, Does::kConvolution,
                                    Does::kSum,         Does::kRelu, Does::kThrough, Does::kOther,   Does::kProduct};
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    CHECK((facts[i].does == wanted[i]));
  }
  CHECK((facts[0].norm == size_t{1}));
  CHECK((facts[0].relu == size_t{2}));
  CHECK(facts[0].last(0) == 2);
  CHECK_FALSE(facts[4].norm.has_value());
  CHECK((facts[5].relu == size_t{6}));
  CHECK((facts[3].readers == std::vector<size_t>{4, 5}));
}

TEST_CASE("a layer that others read is not absorbed") {
  LayerGraph graph;
  const int conv = add_conv(graph, "conv", 2, 4, 3);
  const int relu = add_relu(graph, "relu");
  add_sum(graph, "sum", conv, relu);
  const std::vector<LayerFacts> facts = facts_of(graph, {6, 2, 8, 8});
  CHECK((facts[0].does == Does::kConvolution));
  CHECK_FALSE(facts[0].relu.has_value());
}

TEST_CASE("the kind of a layer is not trusted: its output is compared") {
  LayerGraph graph;
  graph.add("relu", "relu", [](const LayerGraph::Inputs& in) { return at::tanh(in[0]); });
  const auto conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1)).ptr();
  graph.add_layer("conv", "conv2d", conv, [conv](const LayerGraph::Inputs& in) { return conv->forward(in[0]) * 2; }, {});
  graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1] * 0.5; }, {0, 1});
  graph.add("odd", "conv2d", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1).padding_mode(torch::kReflect)));
  torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(2).track_running_stats(false));
  graph.add("norm", "batchnorm2d", norm);
  for (const LayerFacts& facts : facts_of(graph, {4, 2, 8, 8})) CHECK((facts.does == Does::kOther));
  CHECK(facts_of(graph, {4, 2, 8, 8})[3].why_float.find("conv2d") != std::string::npos);
}

}  // namespace

}  // namespace cohort

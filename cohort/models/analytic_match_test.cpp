// The shapes that plans are made from (plan/profile/analytic_profile.h) are those of the models: names, edges, weights, tied weights.
#include <doctest/doctest.h>

#include <cstdio>
#include <set>

#include "cohort/models/registry.h"
#include "cohort/plan/profile/analytic_profile.h"

namespace cohort {
namespace {

Cluster any_cluster() {
  Cluster cluster{.name = "any"};
  cluster.devices = {{.name = "d", .memory_bytes = 1, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1}};
  cluster.hosts = {{1, 1, 0}};
  return cluster;
}

TEST_CASE("analytic shapes: those of the models, for every built-in family") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"fc", "synthetic:1x28x28"},
      {"fc:hidden=64,layers=3", "synthetic:3x16x16"},
      {"cnn", "synthetic:1x28x28"},
      {"cnn:width=0.5", "synthetic:3x32x32"},
      {"resnet8", "synthetic:3x32x32"},
      {"resnet8:width=8", "synthetic:1x28x28"},
      {"resnet50:width=8,blocks=1-2-1", "synthetic:3x32x32"},
      {"resnet50:width=8,norm=none,stem=imagenet", "synthetic:3x64x64"},
      {"resnet50:width=8,norm=batch", "synthetic:3x32x32"},
      {"vgg11:width=8", "synthetic:3x32x32"},
      {"vgg11:width=8,norm=group,dropout=0.5", "synthetic:1x28x28"},
      {"inception", "synthetic:3x32x32"},
      {"inception:width=6,blocks=4,norm=ghost", "synthetic:1x28x28"},
      {"lstm", "synthetic:text"},
      {"lstm:hidden=32,dropout=0.1", "synthetic:text"},
      {"transformer", "synthetic:text"},
      {"transformer:layers=3,width=32,heads=4,ff=96,dropout=0.1,tied=1", "synthetic:text"},
      {"mlp-small", "synthetic:1x28x28"},
      {"mlp", "synthetic:1x28x28"},
      {"cnn-bench", "synthetic:1x28x28"},
      {"gpt:width=64", "synthetic:text"}};
  std::set<std::string> met;
  for (const auto& [model, data] : cases) {
    CAPTURE(model);
    met.insert(model.substr(0, model.find(':')));
    const bool is_text = data == "synthetic:text";
    DataShape shape{is_text ? DataShape::Kind::kText : DataShape::Kind::kImage, {}, is_text ? 256 : 10, {}};
    if (is_text) {
      shape.input = {64};
    } else {
      int64_t sides[3] = {};
      REQUIRE(std::sscanf(data.c_str(), "synthetic:%ldx%ldx%ld", &sides[0], &sides[1], &sides[2]) == 3);
      shape.input.assign(sides, sides + 3);
    }
    const std::shared_ptr<LayerGraph> graph = build_model(model, shape, 1);
    const ModelProfile profile = analytic_profile(model, any_cluster(), {.micro_batches = {1}, .data = data});
    REQUIRE(profile.layers.size() == graph->layers().size());
    std::set<std::pair<int, int>> edges, expected;
    std::set<const void*> known;
    int num_tied = 0;
    for (size_t i = 0; i < graph->layers().size(); ++i) {
      const LayerGraph::Layer& layer = graph->layers()[i];
      CAPTURE(layer.name);
      CHECK(profile.layers[i].name == layer.name);
      CHECK(profile.layers[i].kind == layer.kind);
      for (const int input : layer.inputs) expected.emplace(input == LayerGraph::kInput ? -1 : input, static_cast<int>(i));
      int64_t trained = 0, buffers = 0;
      if (layer.module) {
        for (const at::Tensor& parameter : layer.module->parameters()) {
          if (known.insert(parameter.unsafeGetTensorImpl()).second) trained += parameter.numel();
          else ++num_tied;
        }
        for (const at::Tensor& buffer : layer.module->buffers()) buffers += static_cast<int64_t>(buffer.nbytes());
      }
      CHECK(profile.layers[i].num_trained == trained);
      CHECK(profile.layers[i].buffer_bytes == buffers);
    }
    edges.insert(profile.edges.begin(), profile.edges.end());
    CHECK(edges == expected);
    CHECK(static_cast<int>(profile.tied.size()) == num_tied);
  }
  for (const std::string& name : analytic_models()) CHECK(met.contains(name));
}

}  // namespace
}  // namespace cohort

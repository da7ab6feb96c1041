#include "cohort/compress/compressed_parts.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>

#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/parts.h"

namespace cohort {
namespace {

using Form = CompressedLayer::Form;

std::shared_ptr<LayerGraph> residual_model() {
  torch::manual_seed(21);
  auto graph = std::make_shared<LayerGraph>();
  add_conv(*graph, "conv1", 2, 8, 3, 1, /*bias=*/false);
  add_norm(*graph, "norm1", {.kind = "ghost", .ghost_size = 4}, 8);
  add_relu(*graph, "relu1");
  const int pool = add_max_pool(*graph, "pool", 2, 2);
  const int branch = add_conv(*graph, "conv2", 8, 8, 3);
  add_sum(*graph, "sum", pool, branch);
  add_relu(*graph, "relu2");
  add_global_mean(*graph, "mean");
  add_linear(*graph, "output", 8, 5);
  at::NoGradGuard no_grad;
  auto& norm = dynamic_cast<GhostBatchNorm2dImpl&>(*graph->layers()[1].module);
  norm.weight.copy_(at::randn({8}).abs() + 0.5);
  norm.bias.copy_(at::randn({8}) * 0.3);
  norm.running_mean.copy_(at::randn({8}) * 0.2);
  norm.running_var.copy_(at::randn({8}).abs() + 0.5);
  graph->eval();
  return graph;
}

CompressionSource source_of(std::shared_ptr<LayerGraph> (*build)(), const at::Tensor& input) {
  CompressionSource source{.model = build(), .facts = {}, .fresh = build};
  source.facts = examine_layers(*source.model, input);
  return source;
}

Form form_of(const CompressedParts& parts, const std::string& name) {
  const auto found =
      std::find_if(parts.form.layers.begin(), parts.form.layers.end(), [&](const auto& layer) { return layer.name == name; });
  REQUIRE_MESSAGE(found != parts.form.layers.end(), name);
  return found->form;
}

double relative(const at::Tensor& found, const at::Tensor& wanted) { return ((found - wanted).norm() / wanted.norm()).item<double>(); }

TEST_CASE("a residual model with batch norm, in int8 from end to end") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(22);
  const at::Tensor input = at::randn({32, 2, 12, 12});
  const CompressionSource source = source_of(residual_model, input);
  const ActivationScales scales = observe_activations(*source.model, {input}, min_max_range());
  CompressedParts parts = static_parts(source, scales, {0, 4, 8});
  CHECK((form_of(parts, "conv1") == Form::kStatic));
  CHECK((form_of(parts, "norm1") == Form::kAbsorbed));
  CHECK((form_of(parts, "relu1") == Form::kAbsorbed));
  CHECK((form_of(parts, "pool") == Form::kThrough));
  CHECK((form_of(parts, "sum") == Form::kSum));
  CHECK((form_of(parts, "relu2") == Form::kAbsorbed));
  CHECK(parts.form.layers.back().floats);
  CHECK(parts.form.layers.size() == 8);  // All but the mean.
  const std::shared_ptr<LayerGraph> model = complete(source, parts);
  CHECK(model->parameters().empty());
  CHECK(parts.tensors.contains("conv1.bias"));  // What the norm left.
  CHECK_FALSE(parts.tensors.contains("norm1.weight"));
  const at::Tensor wanted = source.model->forward(input), found = model->forward(input);
  CHECK_FALSE(found.is_quantized());
  CHECK(relative(found, wanted) < 0.05);
  CHECK(relative(found, wanted) > 0);
  // Any part of it: layers that stay floats get floats.
  for (const LayerSet& chosen : {LayerSet{0}, LayerSet{4}, LayerSet{8}, LayerSet{0, 8}, LayerSet{4, 8}, LayerSet{}}) {
    CompressedParts some = static_parts(source, scales, chosen);
    CHECK(relative(complete(source, some)->forward(input), wanted) < 0.05);
  }
}

TEST_CASE("scales are finer the smaller the range, and a wrong one shows") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(23);
  const at::Tensor input = at::randn({32, 2, 12, 12});
  const CompressionSource source = source_of(residual_model, input);
  ActivationScales scales = observe_activations(*source.model, {input}, min_max_range());
  const at::Tensor wanted = source.model->forward(input);
  scales.outputs[2]->scale *= 40;
  CompressedParts parts = static_parts(source, scales, {0, 4, 8});
  CHECK(relative(complete(source, parts)->forward(input), wanted) > 0.05);
}

std::shared_ptr<LayerGraph> transformer_model() {
  torch::manual_seed(24);
  auto graph = std::make_shared<LayerGraph>();
  graph->add("embedding", "embedding", ByteEmbedding(16, 24, 6));
  graph->add("block", "transformerblock", TransformerBlock(BlockOptions{.width = 24, .heads = 2, .ff = 48}));
  add_linear(*graph, "output", 24, 16, /*bias=*/false);
  graph->eval();
  return graph;
}

TEST_CASE("a Transformer: dynamic products, static ones around them, and codes of every matrix") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(25);
  const at::Tensor input = at::randint(16, {8, 6}, at::kLong);
  const CompressionSource source = source_of(transformer_model, input);
  CHECK(source.facts[0].why_float.find("embedding") != std::string::npos);
  CHECK((source.facts[1].does == LayerFacts::Does::kBlock));
  const at::Tensor wanted = source.model->forward(input);
  const ActivationScales scales = observe_activations(*source.model, {input}, min_max_range());
  CHECK_FALSE(scales.input.has_value());  // Bytes are no floats.
  std::vector<CompressedParts> all = {dynamic_parts(source, {1, 2}), static_parts(source, scales, {1, 2}),
                                      coded_parts(source, {0, 1, 2}, 8, 0), coded_parts(source, {0, 1, 2}, 4, 8)};
  const std::vector<double> bounds = {0.05, 0.05, 0.02, 0.2};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const std::shared_ptr<LayerGraph> model = complete(source, all[i]);
    const double found = relative(model->forward(input), wanted);
    CHECK(found < bounds[i]);
    CHECK(found > 0);
  }
  CHECK(all[0].form.layers.size() == 2);
  CHECK(all[2].form.layers.empty());
  CHECK((all[3].tensors.at("block.up.weight").scalar_type() == at::kByte));
  CHECK((all[3].tensors.at("block.up.weight.scale").sizes().vec() == std::vector<int64_t>{48, 3}));
}

}  // namespace
}  // namespace cohort

#include "cohort/compress/compressed_content.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/data/source/description_json.h"
#include "cohort/infer/trained_file.h"
#include "cohort/infer/trained_model.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/parts.h"
#include "cohort/models/registry.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"

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

Form form_of(const CompressedContent& content, const std::string& name) {
  const auto found =
      std::find_if(content.form.layers.begin(), content.form.layers.end(), [&](const auto& layer) { return layer.name == name; });
  REQUIRE_MESSAGE(found != content.form.layers.end(), name);
  return found->form;
}

double relative(const at::Tensor& found, const at::Tensor& wanted) { return ((found - wanted).norm() / wanted.norm()).item<double>(); }

TEST_CASE("a residual model with batch norm, in int8 from end to end") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(22);
  const at::Tensor input = at::randn({32, 2, 12, 12});
  const CompressionSource source = source_of(residual_model, input);
  const ActivationScales scales = observe_activations(*source.model, {input}, find_range_method("min-max"));
  CompressedContent content = compress_static(source, scales, {0, 4, 8});
  CHECK((form_of(content, "conv1") == Form::kStatic));
  CHECK((form_of(content, "norm1") == Form::kAbsorbed));
  CHECK((form_of(content, "relu1") == Form::kAbsorbed));
  CHECK((form_of(content, "pool") == Form::kThrough));
  CHECK((form_of(content, "sum") == Form::kSum));
  CHECK((form_of(content, "relu2") == Form::kAbsorbed));
  CHECK(content.form.layers.back().floats);
  CHECK(content.form.layers.size() == 8);  // All but the mean.
  const std::shared_ptr<LayerGraph> model = build_compressed(source, content);
  CHECK(model->parameters().empty());
  CHECK(content.tensors.contains("conv1.bias"));  // From the folded norm.
  CHECK_FALSE(content.tensors.contains("norm1.weight"));
  const at::Tensor wanted = source.model->forward(input), found = model->forward(input);
  CHECK_FALSE(found.is_quantized());
  CHECK(relative(found, wanted) < 0.05);
  CHECK(relative(found, wanted) > 0);
  // Any subset of the layers: those that stay in floats get floats.
  for (const LayerSet& chosen : {LayerSet{0}, LayerSet{4}, LayerSet{8}, LayerSet{0, 8}, LayerSet{4, 8}, LayerSet{}}) {
    CompressedContent some = compress_static(source, scales, chosen);
    CHECK(relative(build_compressed(source, some)->forward(input), wanted) < 0.05);
  }
}

TEST_CASE("scales are finer the smaller the range, and a wrong one shows") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(23);
  const at::Tensor input = at::randn({32, 2, 12, 12});
  const CompressionSource source = source_of(residual_model, input);
  ActivationScales scales = observe_activations(*source.model, {input}, find_range_method("min-max"));
  const at::Tensor wanted = source.model->forward(input);
  scales.outputs[2]->scale *= 40;
  CompressedContent content = compress_static(source, scales, {0, 4, 8});
  CHECK(relative(build_compressed(source, content)->forward(input), wanted) > 0.05);
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
  const ActivationScales scales = observe_activations(*source.model, {input}, find_range_method("min-max"));
  CHECK_FALSE(scales.input.has_value());  // Bytes are not floats.
  std::vector<CompressedContent> all = {compress_dynamic(source, {1, 2}), compress_static(source, scales, {1, 2}),
                                        compress_weights(source, {0, 1, 2}, 8, 0), compress_weights(source, {0, 1, 2}, 4, 8)};
  const std::vector<double> bounds = {0.05, 0.05, 0.02, 0.2};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const std::shared_ptr<LayerGraph> model = build_compressed(source, all[i]);
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

// Files of compressed models: they load as they were written; damaged files are refused in one line or load with their changed content.

namespace {

constexpr const char* kSmallModel = "cnn:conv1=3,conv2=4,hidden=6";

DataDescription small_pictures() { return {.input = DataDescription::Input::kTensor, .shape = {1, 8, 8}, .num_outputs = 4}; }

FileMetadata small_metadata() {
  Config config;
  config.model = kSmallModel;
  return {{"step", "3"}, {"format", "pt"}, {"model", kSmallModel}, {"config", to_toml(config)}, {"data", to_json(small_pictures()).dump()}};
}

std::shared_ptr<LayerGraph> build_small() {
  std::shared_ptr<LayerGraph> model = build_model(kSmallModel, shape_of(small_pictures()), 1);
  model->eval();
  return model;
}

/// Nine of ten weights are zero.
std::shared_ptr<LayerGraph> with_zeros() {
  const at::NoGradGuard no_grad;
  std::shared_ptr<LayerGraph> model = build_small();
  for (const at::Tensor& parameter : model->parameters())
    if (parameter.dim() >= 2) parameter.masked_fill_(at::rand_like(parameter) < 0.9, 0);
  return model;
}

/// The content by every scheme.
std::vector<CompressedContent> small_contents(CompressionSource& source, const at::Tensor& input) {
  source = {.model = build_small(), .facts = {}, .fresh = build_small};
  source.facts = examine_layers(*source.model, input);
  const ActivationScales scales = observe_activations(*source.model, {input}, find_range_method("min-max"));
  return {compress_static(source, scales, {0, 3, 7, 9}), compress_static(source, scales, {3, 9}),      compress_dynamic(source, {7, 9}),
          compress_weights(source, {0, 3, 7, 9}, 8, 0),  compress_weights(source, {0, 3, 7, 9}, 4, 5), compress_sparse(*with_zeros())};
}

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST_CASE("a loaded file answers bit for bit as the model that it was made of") {
  const at::NoGradGuard no_grad;
  const TemporaryFolder folder;
  torch::manual_seed(31);
  const at::Tensor input = at::randn({16, 1, 8, 8});
  CompressionSource source;
  for (CompressedContent& content : small_contents(source, input)) {
    const std::shared_ptr<LayerGraph> made = build_compressed(source, content);
    const std::string path = folder / "m.safetensors";
    const int64_t bytes = write_compressed_file(path, content, small_metadata());
    CHECK(bytes == static_cast<int64_t>(content_of(path).size()));
    const TrainedModel loaded = load_compressed(path);
    CHECK(at::equal(loaded(input), made->forward(input)));
    CHECK(at::equal(load(path)(input), loaded(input)));
    CHECK(loaded.model() == kSmallModel);
    CHECK(loaded.step() == 3);
  }
}

TEST_CASE("files whose content does not fit the model are refused") {
  const TemporaryFolder folder;
  const at::Tensor input = at::randn({8, 1, 8, 8});
  CompressionSource source;
  CompressedContent content = small_contents(source, input).front();
  build_compressed(source, content);
  const std::string path = folder / "m.safetensors";
  const auto refusal = [&](const std::function<void(CompressedContent&, FileMetadata&)>& change) {
    CompressedContent changed = content;
    FileMetadata metadata = small_metadata();
    change(changed, metadata);
    write_compressed_file(path, changed, metadata);
    return error_of([&] { load_compressed(path); });
  };
  CHECK(refusal([](auto& p, auto&) { p.tensors.erase("conv1.bias"); }).find("conv1.bias") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.tensors.erase("conv1.weight.scale"); }).find("conv1.weight.scale") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.form.tensors.erase("conv1.weight"); }).find("not kept as int8") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.form.layers[0].name = "convx"; }).find("convx") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.form.layers[0].form = CompressedLayer::Form::kDynamic; }).find("relu") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.form.layers[0] = {.name = "conv1", .form = CompressedLayer::Form::kDynamic}; }).find("conv2d") !=
        std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.form.layers[0].form = CompressedLayer::Form::kSum; }).find("conv1") != std::string::npos);
  CHECK(refusal([](auto& p, auto&) { p.tensors["more"] = at::randn({2}); }).find("more") != std::string::npos);
  CHECK(refusal([](auto&, auto& m) { m["model"] = "cnn:conv1=5,conv2=4,hidden=6"; }).find("[3, 1, 5, 5]") != std::string::npos);
  // A plain export is not a compressed file.
  CompressedContent plain;
  for (const auto& parameter : source.model->named_parameters()) plain.tensors[parameter.key()] = parameter.value().detach();
  write_compressed_file(path, plain, small_metadata());
  std::string text = content_of(path);
  text.replace(text.find("\"compressed\""), 12, "\"compress_d\"");
  text.replace(text.find(kTextChecksum), std::strlen(kTextChecksum), "text_none");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  CHECK(error_of([&] { load_compressed(path); }).find("not compressed") != std::string::npos);
  CHECK(load(path).step() == 3);
}

TEST_CASE("mutation: compressed files") {
  const at::NoGradGuard no_grad;
  const TemporaryFolder folder;
  const at::Tensor input = at::randn({2, 1, 8, 8});
  CompressionSource source;
  int refused = 0, accepted = 0;
  const std::string path = folder / "m.safetensors";
  for (CompressedContent& content : small_contents(source, input)) {
    build_compressed(source, content);
    write_compressed_file(path, content, small_metadata());
    std::string whole = content_of(path);
    whole.back() ^= 1;
    std::ofstream(path, std::ios::binary) << whole;
    CHECK(error_of([&] { load_compressed(path); }).find("checksum") != std::string::npos);
    whole.back() ^= 1;
    // The rest tests what happens after that check.
    for (const char* const key : {kTensorsChecksum, kTextChecksum}) whole.replace(whole.find(key), std::strlen(key), std::strlen(key), 'x');
    const size_t header = 8 + whole.find('}');
    const auto take = [&](const std::string& text) {
      std::filesystem::remove(path);  // Some file systems flush to disk when a file is written over.
      std::ofstream(path, std::ios::binary) << text;
      try {
        const TrainedModel model = load_compressed(path);
        const bool gives_floats = model(input).scalar_type() == at::kFloat;
        REQUIRE(gives_floats);
        ++accepted;
      } catch (const Error& error) {
        REQUIRE_MESSAGE(error.code() == ErrorCode::kBadInput, std::string(error.what()));
        REQUIRE_MESSAGE(std::string(error.what()).find('\n') == std::string::npos, std::string(error.what()));
        ++refused;
      }
    };
    for (size_t length = 0; length < whole.size(); length += 1 + length / 40) take(whole.substr(0, length));
    const uint64_t count = mutation_count(300);
    for (uint64_t seed = 1; seed <= count; ++seed) {
      take(mutated(whole, seed));
      // Most bytes are data: of the header alone too, its length kept.
      std::string front = mutated(whole.substr(8, header + 600), seed);
      front.resize(header + 600, ' ');
      take(whole.substr(0, 8) + front + whole.substr(8 + header + 600));
    }
  }
  CHECK(refused > 1000);
  CHECK(accepted > 20);
}

}  // namespace

}  // namespace cohort

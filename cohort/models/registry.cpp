#include "cohort/models/registry.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/model/model_options.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/loss/losses.h"
#include "cohort/models/parts.h"

namespace cohort {

namespace {

/// One row for each built-in family (described at the top of its file), then whatever is registered. Made on first use, since registrars
/// run before main.
std::map<std::string, ModelEntry>& mutable_models() {
  static std::map<std::string, ModelEntry> models = [] {
    const std::vector<ModelEntry> rows = {
        {"fc", "fully connected, ReLU: hidden=1024 layers=1 (hidden layers)", families::fc},
        {"cnn", "the study's Simple CNN, two 5x5 convolutions: conv1=32 conv2=64 hidden=1024, width=1 (scales all three)", families::cnn},
        {"resnet8", "pre-activation ResNet-8 without batch norm: width=16 (of the first block)", families::resnet8},
        {"resnet50",
         "bottleneck ResNet: width=64 blocks=3-4-6-3 norm=ghost|batch|group|none ghost=32 (samples a group) stem=imagenet|small "
         "(small below 64 pixels)",
         families::resnet50},
        {"vgg11", "VGG-11: width=64 hidden=4096 (512 below 64 pixels) dropout=0 norm=none|ghost|batch|group ghost=32", families::vgg11},
        {"inception", "modules of four parallel branches: width=16 (of the 1x1 branch) blocks=2 norm=none|ghost|batch|group ghost=32",
         families::inception},
        {"lstm", "byte LSTM, one layer: width=128 hidden=256 dropout=0 (the paper: hidden=2048)", families::lstm},
        {"transformer",
         "byte Transformer: layers=2 width=64 heads=2 ff=4*width dropout=0 tied=0|1 (the paper: layers=6 width=512 heads=8 ff=2048)",
         families::transformer},
        {"mlp-small", "benchmark: two hidden layers: width=128", families::mlp_small},
        {"mlp", "benchmark: two hidden layers: width=1024", families::mlp},
        {"cnn-bench", "benchmark: two 3x3 convolutions of 32 and 64 channels, 1024 hidden units", families::cnn_bench},
        {"gpt", "benchmark: byte Transformer: layers=4 width=256 heads=4", families::gpt}};
    std::map<std::string, ModelEntry> built_in;
    for (const ModelEntry& row : rows) built_in.emplace(row.name, row);
    return built_in;
  }();
  return models;
}

/// Adds model and data to the errors of a factory, which name neither.
BuiltModel make(const ModelEntry& entry, const ModelOptions& options) {
  try {
    return entry.factory(options);
  } catch (const std::exception& error) {
    if (!is_mismatch_error(error) && is_user_exception(error))
      fail(ErrorCode::kBadInput, "model ", entry.name, ": its factory failed (", quote(error), ")");
    if (!is_mismatch_error(error)) throw;
    const DataShape& data = options.data();
    const bool is_text = data.kind == DataShape::Kind::kText;
    fail(ErrorCode::kBadInput, "model ", entry.name, ": its factory failed for samples of (", describe_sizes(data.input), ")",
         is_text ? " bytes of text" : " numbers", " and ", data.num_classes, is_text ? " byte values" : " classes",
         "; make its layers from options.data(), or give it data of the kind that it is made for (", quote(error), ")");
  }
}

/// "torch::nn::Conv2dImpl" -> "conv2d". A class of the program's own keeps its namespaces, "mine::linear" or "::linear": it may do
/// anything, so rules for LibTorch's layer of that name must not apply to it.
std::string kind_of(const torch::nn::Module& module) {
  std::string kind = module.name();
  kind.resize(std::min(kind.size(), kind.find('<')));  // Without template arguments.
  if (kind.ends_with("Impl")) kind.resize(kind.size() - 4);
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string known : {"torch::nn::", "cohort::"})
    if (kind.starts_with(known) && kind.find("::", known.size()) == std::string::npos) return kind.substr(known.size());
  const std::string unnamed = "(anonymous namespace)::";
  for (size_t at = kind.find(unnamed); at != std::string::npos; at = kind.find(unnamed)) kind.erase(at, unnamed.size());
  return kind.find("::") == std::string::npos ? "::" + kind : kind;
}

}  // namespace

const ModelEntry& find_model(const std::string& name) {
  const auto& models = registered_models();
  if (const auto found = models.find(name); found != models.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : models) names.push_back(known);
  fail(ErrorCode::kBadInput, "there is no model '", name, "'", did_you_mean(name, names), "; models: ", join(names, " "));
}

void register_model(const std::string& name, const std::string& help, ModelFactory factory) {
  if (name.empty() || name.find_first_of(":,= \t\n") != std::string::npos)
    fail(ErrorCode::kBadInput, "a model cannot be registered as '", name, "': a name is not empty and holds no ':', ',', '=' or space");
  if (!factory) fail(ErrorCode::kBadInput, "model ", name, " cannot be registered without a factory");
  if (!mutable_models().emplace(name, ModelEntry{name, help, std::move(factory)}).second)
    fail(ErrorCode::kBadInput, "model ", name, " cannot be registered: the name is taken");
}

const std::map<std::string, ModelEntry>& registered_models() { return mutable_models(); }

std::shared_ptr<LayerGraph> build_model(const std::string& specification, const DataShape& data, uint64_t seed) {
  ModelSpecification parsed = parse_model(specification);
  const ModelEntry& entry = find_model(parsed.name);
  const ModelOptions options(data, std::move(parsed.values));
  // Modules draw initial values from the process-wide generator, so ranks that are threads build one after the other.
  static std::recursive_mutex generator_mutex;  // Recursive: a factory may build another registered model.
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  BuiltModel model = make(entry, options);
  options.check_all_used(parsed.name);
  if (!model.graph || model.graph->layers().empty()) fail(ErrorCode::kBadInput, "model ", parsed.name, ": its factory made no layers");
  model.graph->set_title("model " + parsed.name);
  if (data.regression && !model.graph->loss()) model.graph->set_loss(mean_squared_error, "mse");
  if (data.labels && !model.graph->loss()) model.graph->set_loss(binary_cross_entropy, "binary");
  return std::move(model.graph);
}

BuiltModel::BuiltModel(std::shared_ptr<LayerGraph> built, BuiltModelOptions options) : graph(std::move(built)) {
  if (graph && options.loss) graph->set_loss(std::move(options.loss));
}

std::shared_ptr<LayerGraph> BuiltModel::one_layer(std::shared_ptr<torch::nn::Module> module, LayerGraph::Function function,
                                                  BuiltModelOptions options) {
  if (!module) fail(ErrorCode::kBadInput, "a model cannot be an empty module: make the one that the factory returns");
  auto graph = std::make_shared<LayerGraph>();
  const std::string kind = kind_of(*module);
  graph->add_layer("model", kind, std::move(module), std::move(function), {});
  graph->set_loss(std::move(options.loss));
  return graph;
}

BuiltModel::BuiltModel(torch::nn::Sequential sequential, BuiltModelOptions options) : graph(std::make_shared<LayerGraph>()) {
  graph->set_loss(std::move(options.loss));
  if (sequential.is_empty() || sequential->is_empty()) fail(ErrorCode::kBadInput, "a model cannot be an empty torch::nn::Sequential");
  const auto children = sequential->named_children();
  size_t index = 0;
  for (const torch::nn::AnyModule& child : *sequential) {
    const auto& name = children[index++].key();
    // A copy of an AnyModule is another handle of the same module; calling it is not const.
    graph->add_layer(name, kind_of(*child.ptr()), child.ptr(),
                     [any = child](const LayerGraph::Inputs& in) mutable { return any.forward(in[0]); }, {});
  }
}

}  // namespace cohort

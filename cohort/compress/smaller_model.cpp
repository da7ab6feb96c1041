// Structured pruning by filter norms (Li et al. 2017, "Pruning filters for efficient ConvNets", arXiv 1608.08710), with tied channels as in
// Fang et al. 2023, "DepGraph" (arXiv 2301.12900), but for single channels. Steps:
//
//   1. Tied channels form a class: where a sum, a skip, a concatenation or a flatten ties channels together, all of them stay or all of
//      them are removed. Union-find over the channels of all layers (Tarjan 1975), one pass over the layers:
//
//        conv2d, linear                  new channels: every input channel goes into each of them
//        relu, pooling, norms, dropout,  channel c is channel c of the input
//        mean
//        flatten                         features c h w ... of a picture are channel c
//        add                             channel c of both inputs is one
//        concat                          channels of the branches, one after the other
//        shortcut                        channel c is channel c of the input; those behind it are zeros and belong to no class of the input
//
//   2. The norm of a class is the root of the sum of the squared L2 norms of all filters that compute it (rows of linear layers), each
//      times the factor gamma / sqrt(variance + eps) of the batch norm behind it.
//   3. Classes that occur in the same set of layers are interchangeable: they are of one kind. How many of each kind stay follows from the
//      widths of the smaller model, layer by layer: where all kinds in a layer but one are known, the last gets the rest.
//   4. Of each kind the classes with the largest norms stay, in their order; every tensor is cut to them.
//
// All channels of the model's input and output stay. Cost: a forward of one batch, a pass over the weights, and the union-find, which is
// nearly linear in the number of channels.
#include "cohort/compress/smaller_model.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/compressed_content.h"
#include "cohort/compress/layer_facts.h"
#include "cohort/data/model/model_options.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

constexpr bool hands_channels_on(std::string_view kind) {
  for (const char* known : {"relu", "maxpool2d", "avgpool2d", "batchnorm2d", "ghostbatchnorm2d", "dropout", "mean", "shortcut"})
    if (kind == known) return true;
  return false;
}

/// Step 1. The channels of a layer are dimension 1 of its output; each feature of a flattened picture is a channel.
class ChannelClasses {
 public:
  /// `shapes`: of every layer's output, and last of the model's input. Error(kBadInput) that names a layer whose kind is not known here.
  ChannelClasses(const LayerGraph& model, const std::vector<std::vector<int64_t>>& shapes) {
    int64_t next = 0;
    for (const std::vector<int64_t>& shape : shapes) {
      if (shape.size() < 2) fail(ErrorCode::kBadInput, model.title(), " has a layer whose output has no channels");
      firsts_.push_back(next);
      counts_.push_back(shape[1]);
      next += shape[1];
    }
    parents_.resize(static_cast<size_t>(next));
    std::iota(parents_.begin(), parents_.end(), 0);
    for (size_t i = 0; i < model.layers().size(); ++i) tie_layer(model, static_cast<int>(i));
  }

  int64_t num_channels(int layer) const { return counts_[index_of(layer)]; }
  /// A number that tied channels share; `layer` may be LayerGraph::kInput.
  int64_t class_of(int layer, int64_t channel) const {
    int64_t number = number_of(layer, channel);
    while (parents_[static_cast<size_t>(number)] != number) number = parents_[static_cast<size_t>(number)];
    return number;
  }

 private:
  size_t index_of(int layer) const { return layer == LayerGraph::kInput ? firsts_.size() - 1 : static_cast<size_t>(layer); }
  int64_t number_of(int layer, int64_t channel) const { return firsts_[index_of(layer)] + channel; }

  void tie(int layer, int64_t channel, int other, int64_t other_channel) {
    const int64_t a = class_of(layer, channel), b = class_of(other, other_channel);
    // The channels themselves too, which shortens later walks.
    for (const int64_t number : {a, b, number_of(layer, channel), number_of(other, other_channel)})
      parents_[static_cast<size_t>(number)] = std::min(a, b);
  }

  void tie_layer(const LayerGraph& model, int index) {
    const LayerGraph::Layer& layer = model.layers()[static_cast<size_t>(index)];
    const int64_t count = num_channels(index);
    const auto refuse = [&](const std::string& why) {
      fail(ErrorCode::kBadInput, model.title(), ": layer ", layer.name, " (", layer.kind, ") ", why);
    };
    if (layer.kind == "conv2d" || layer.kind == "linear") return;
    if (layer.kind == "flatten") {
      const int64_t channels = num_channels(layer.inputs[0]);
      if (channels == 0 || count % channels != 0) refuse("makes features that are not those of its input's channels");
      for (int64_t feature = 0; feature < count; ++feature) tie(index, feature, layer.inputs[0], feature / (count / channels));
    } else if (layer.kind == "concat") {
      int64_t next = 0;
      for (const int input : layer.inputs)
        for (int64_t channel = 0; channel < num_channels(input); ++channel) tie(index, next++, input, channel);
      if (next != count) refuse("does not put its inputs' channels one after the other");
    } else if (layer.kind == "add") {
      for (const int input : layer.inputs) {
        if (num_channels(input) != count) refuse("adds outputs of different sizes");
        for (int64_t channel = 0; channel < count; ++channel) tie(index, channel, input, channel);
      }
    } else if (hands_channels_on(layer.kind)) {
      const int64_t common = num_channels(layer.inputs[0]);
      if (common > count || (common < count && layer.kind != "shortcut")) refuse("has other channels than its input");
      for (int64_t channel = 0; channel < common; ++channel) tie(index, channel, layer.inputs[0], channel);
    } else {
      refuse("does something to channels that is not known");
    }
  }

  std::vector<int64_t> firsts_;   ///< Number of the first channel of each layer, and last of the input.
  std::vector<int64_t> counts_;   ///< Channels of each layer, and last of the input.
  std::vector<int64_t> parents_;  ///< Union-find: a root is its own parent and the smallest number of its class.
};

/// How a family expresses its sizes.
struct FamilyWidths {
  std::vector<std::pair<const char*, const char*>> widths;  ///< Options that are widths, each with the layer whose output has that width.
  std::vector<const char*> replaced;                        ///< Options that say the same and are dropped.
};

const std::map<std::string, FamilyWidths> kFamilies = {
    {"fc", {{{"hidden", "hidden1"}}, {}}},
    {"cnn", {{{"conv1", "conv1"}, {"conv2", "conv2"}, {"hidden", "hidden"}}, {"width"}}},
    {"resnet8", {{{"width", "stem"}}, {}}},
    {"vgg11", {{{"width", "conv1"}, {"hidden", "hidden1"}}, {}}},
};

std::string names_of_families() {
  std::vector<std::string> names;
  for (const auto& [name, widths] : kFamilies) names.push_back(name);
  return join(names, ", ");
}

bool makes_channels(const LayerGraph::Layer& layer) { return layer.kind == "conv2d" || layer.kind == "linear"; }

/// {out, in, ...}; undefined for a layer without a weight.
at::Tensor weight_of(const LayerGraph::Layer& layer) {
  if (!layer.module) return {};
  const auto parameters = layer.module->named_parameters();
  const at::Tensor* const weight = parameters.find("weight");
  return weight ? *weight : at::Tensor();
}

/// Steps 2 to 4.
class ChannelCut {
 public:
  ChannelCut(const LayerGraph& model, const LayerGraph& smaller, const at::Tensor& input)
      : model_(model), smaller_(smaller), shapes_(shapes_of(model, input)), classes_(model, shapes_) {
    find_kinds();
    measure_norms();
    count_kept();
    choose();
  }

  void fill(LayerGraph& smaller) const {
    for (size_t i = 0; i < model_.layers().size(); ++i) {
      const LayerGraph::Layer &from = model_.layers()[i], &to = smaller.layers()[i];
      if (!from.module) continue;
      const auto into = named_tensors(*to.module);
      for (const auto& [name, tensor] : named_tensors(*from.module)) {
        const at::Tensor cut = cut_tensor(static_cast<int>(i), from, tensor.detach());
        const auto found = into.find(name);
        if (found == into.end() || found->second.sizes() != cut.sizes())
          fail(ErrorCode::kBadInput, smaller.title(), ": tensor ", from.name, ".", name, " is ",
               found == into.end() ? "missing" : shape_text(found->second.sizes().vec()), ", and its channels make ",
               shape_text(cut.sizes().vec()));
        at::Tensor target = found->second.detach();
        target.copy_(cut);
      }
    }
  }

 private:
  static std::vector<std::vector<int64_t>> shapes_of(const LayerGraph& model, const at::Tensor& input) {
    std::vector<std::vector<int64_t>> shapes;
    for (const at::Tensor& output : run_layers(model, input)) shapes.push_back(output.sizes().vec());
    shapes.push_back(input.sizes().vec());
    return shapes;
  }

  int last_layer() const { return static_cast<int>(model_.layers().size()) - 1; }

  /// The kind of a class is the set of layers in which it occurs.
  void find_kinds() {
    std::map<int64_t, std::vector<int>> layers_of;
    for (int layer = LayerGraph::kInput; layer <= last_layer(); ++layer)
      for (int64_t channel = 0; channel < classes_.num_channels(layer); ++channel) {
        std::vector<int>& layers = layers_of[classes_.class_of(layer, channel)];
        if (layers.empty() || layers.back() != layer) layers.push_back(layer);
      }
    for (const auto& [number, layers] : layers_of) members_[layers].push_back(number);
    for (const auto& [layers, numbers] : members_)
      if (layers.front() == LayerGraph::kInput || layers.back() == last_layer())
        kept_of_kind_[layers] = static_cast<int64_t>(numbers.size());
  }

  void measure_norms() {
    for (int layer = 0; layer <= last_layer(); ++layer) {
      const LayerGraph::Layer& maker = model_.layers()[static_cast<size_t>(layer)];
      if (!makes_channels(maker)) continue;
      const at::Tensor weight = weight_of(maker).detach();
      at::Tensor squares = weight.reshape({weight.size(0), -1}).to(at::kDouble).square().sum(1);
      if (const std::optional<NormFactors> factors = norm_behind(layer)) squares = squares * factors->factor.to(at::kDouble).square();
      for (int64_t channel = 0; channel < squares.size(0); ++channel)
        squared_norms_[classes_.class_of(layer, channel)] += squares.const_data_ptr<double>()[channel];
    }
  }

  std::optional<NormFactors> norm_behind(int layer) const {
    for (const LayerGraph::Layer& reader : model_.layers())
      if (reader.module && reader.inputs == std::vector<int>{layer})
        if (auto factors = norm_factors(reader.module.get())) return factors;
    return {};
  }

  void count_kept() {
    std::map<int, std::set<std::vector<int>>> kinds_of;
    for (const auto& [layers, numbers] : members_)
      for (const int layer : layers)
        if (layer >= 0 && makes_channels(model_.layers()[static_cast<size_t>(layer)])) kinds_of[layer].insert(layers);
    for (bool found = true; found;) {
      found = false;
      for (const auto& [layer, kinds] : kinds_of) {
        int64_t rest = weight_of(smaller_.layers()[static_cast<size_t>(layer)]).size(0);
        std::vector<std::vector<int>> unknown;
        for (const std::vector<int>& kind : kinds) {
          if (const auto known = kept_of_kind_.find(kind); known != kept_of_kind_.end()) rest -= known->second;
          else unknown.push_back(kind);
        }
        if (unknown.size() != 1) continue;
        const auto count = static_cast<int64_t>(members_[unknown[0]].size());
        if (rest < 1 || rest > count)
          fail(ErrorCode::kBadInput, smaller_.title(), ": layer ", model_.layers()[static_cast<size_t>(layer)].name, " would keep ", rest,
               " of ", count, " channels; take another --sparsity");
        kept_of_kind_[unknown[0]] = rest;
        found = true;
      }
    }
  }

  void choose() {
    for (auto& [layers, numbers] : members_) {
      const auto kept = kept_of_kind_.find(layers);
      // Not known: channels of zeros that a shortcut appends, and kinds that step 3 did not reach.
      if (kept == kept_of_kind_.end())
        fail(ErrorCode::kBadInput, model_.title(), ": the smaller model does not determine how many channels of layer ",
             model_.layers()[static_cast<size_t>(std::max(0, layers.front()))].name, " stay");
      std::stable_sort(numbers.begin(), numbers.end(), [&](int64_t a, int64_t b) { return norm(a) > norm(b); });
      kept_.insert(numbers.begin(), numbers.begin() + kept->second);
    }
  }

  double norm(int64_t number) const {
    const auto found = squared_norms_.find(number);
    return found == squared_norms_.end() ? 0 : std::sqrt(found->second);
  }

  at::Tensor kept_channels(int layer) const {
    std::vector<int64_t> kept;
    for (int64_t channel = 0; channel < classes_.num_channels(layer); ++channel)
      if (kept_.contains(classes_.class_of(layer, channel))) kept.push_back(channel);
    return at::tensor(kept, at::kLong);
  }

  at::Tensor cut_tensor(int index, const LayerGraph::Layer& layer, const at::Tensor& tensor) const {
    if (tensor.dim() == 0) return tensor;
    const at::Tensor out = tensor.index_select(0, kept_channels(index));
    return makes_channels(layer) && tensor.dim() >= 2 ? out.index_select(1, kept_channels(layer.inputs[0])) : out;
  }

  const LayerGraph &model_, &smaller_;
  std::vector<std::vector<int64_t>> shapes_;
  ChannelClasses classes_;
  std::map<std::vector<int>, std::vector<int64_t>> members_;  ///< Classes of each kind.
  std::map<std::vector<int>, int64_t> kept_of_kind_;
  std::map<int64_t, double> squared_norms_;
  std::set<int64_t> kept_;
};

}  // namespace

std::string smaller_specification(const std::string& specification, const LayerGraph& model, double sparsity) {
  const ModelSpecification parsed = parse_model(specification);
  const auto family = kFamilies.find(parsed.name);
  if (family == kFamilies.end())
    fail(ErrorCode::kBadInput, "--granularity channel: the options of model ", parsed.name,
         " cannot express the sizes that would be left; those of ", names_of_families(),
         " can; --granularity weight and 2:4 work with every model");
  if (const auto norm = parsed.values.find("norm"); norm != parsed.values.end() && norm->second == "group")
    fail(ErrorCode::kBadInput,
         "--granularity channel: norm=group normalises groups of channels, and fewer channels form other groups; "
         "--granularity weight and 2:4 work with it");
  std::map<std::string, std::string> values = parsed.values;
  for (const char* name : family->second.replaced) values.erase(name);
  bool is_smaller = false;
  for (const auto& [option, layer_name] : family->second.widths) {
    for (const LayerGraph::Layer& layer : model.layers()) {
      if (layer.name != layer_name) continue;
      const int64_t before = weight_of(layer).size(0);
      const int64_t after = std::max<int64_t>(1, std::llround((1 - sparsity) * static_cast<double>(before)));
      is_smaller = is_smaller || after < before;
      values[option] = std::to_string(after);
    }
  }
  if (!is_smaller)
    fail(ErrorCode::kBadInput, "--sparsity ", sparsity, ": no channel of ", specification,
         " would be removed; give more, or --granularity weight");
  std::string out = parsed.name;
  for (const auto& [name, value] : values) out += concat(out == parsed.name ? ":" : ",", name, "=", value);
  return out;
}

void take_channels(const LayerGraph& model, LayerGraph& smaller, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  if (model.layers().size() != smaller.layers().size())
    fail(ErrorCode::kBadInput, smaller.title(), " has ", smaller.layers().size(), " layers, and ", model.title(), " has ",
         model.layers().size());
  ChannelCut(model, smaller, input).fill(smaller);
}

}  // namespace cohort

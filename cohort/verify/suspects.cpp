#include "cohort/verify/suspects.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include <set>
#include <typeinfo>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

using torch::nn::Module;

template <typename... Kinds>
bool is_any_of(const Module& module) {
  return (... || (dynamic_cast<const Kinds*>(&module) != nullptr));
}

/// The drop probability; 0 for modules of other classes.
template <typename Kind>
double probability(const Module& module) {
  const auto* const dropout = dynamic_cast<const Kind*>(&module);
  return dropout ? dropout->options.p() : 0;
}

/// The drop probability of a recurrent layer, which drops only between its layers.
template <typename Kind>
double recurrent_probability(const Module& module) {
  const auto* const layer = dynamic_cast<const Kind*>(&module);
  return layer && layer->options.num_layers() > 1 ? layer->options.dropout() : 0;
}

/// True if forward() draws from LibTorch's generator in training.
bool draws(const Module& module) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): a list of its classes.
  if (const auto* const attention = dynamic_cast<const MultiheadAttentionImpl*>(&module)) return attention->options.dropout() > 0;
  return probability<torch::nn::DropoutImpl>(module) + probability<Dropout2dImpl>(module) + probability<Dropout3dImpl>(module) +
                 probability<AlphaDropoutImpl>(module) + probability<FeatureAlphaDropoutImpl>(module) +
                 recurrent_probability<LSTMImpl>(module) + recurrent_probability<GRUImpl>(module) + recurrent_probability<RNNImpl>(module) >
             0 ||
         is_any_of<RReLUImpl>(module);
}

/// The name in the program: "torch::nn::DropoutImpl" -> "torch::nn::Dropout", "(anonymous namespace)::Norm" -> "Norm".
std::string class_name_of(const Module& module) {
  std::string name = c10::demangle(typeid(module).name());  // Not module.name(), which a constructor may have given.
  constexpr const char* kUnnamed = "(anonymous namespace)::";
  for (size_t at = name.find(kUnnamed); at != std::string::npos; at = name.find(kUnnamed)) name.erase(at, std::string(kUnnamed).size());
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace

Json describe_modules(const LayerGraph& model) {
  Json modules = Json::array();
  std::set<const Module*> seen;  // A module that is used twice has two names.
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const Module& module = *item.value();
    if (!seen.insert(&module).second) continue;
    Json buffers = Json::array();
    for (const auto& buffer : module.named_buffers(/*recurse=*/false))
      if (buffer.value().defined() && buffer.value().is_floating_point()) buffers.push_back(buffer.key());
    const bool is_batch_norm = is_any_of<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>(module);
    modules.push_back(Json{{"module", item.key()},
                           {"class", class_name_of(module)},
                           {"draws", draws(module)},
                           {"batch_norm", is_batch_norm},
                           {"buffers", buffers}});
  }
  return Json{{"modules", modules}, {"own_loss", static_cast<bool>(model.loss())}};
}

std::vector<Suspect> suspects_of(const Json& modules, const SuspectOptions& options) {
  std::vector<Suspect> suspects;
  bool is_drawer_known = false;
  for (const Json& module : modules.at("modules")) {
    const auto name = module.at("module").get<std::string>(), class_name = module.at("class").get<std::string>();
    const auto add = [&](const std::string& why) { suspects.push_back({name, class_name, why}); };
    is_drawer_known = is_drawer_known || module.at("draws").get<bool>();
    if (module.at("draws").get<bool>())
      add("draws from LibTorch's generator, other numbers on each rank; cohort::Dropout draws the same ones under every layout");
    if (!options.batch_is_divided) continue;
    if (module.at("batch_norm").get<bool>()) {
      if (!options.sync_batch_norm)
        add(
            name_settings("takes its statistics from a rank's part of the batch; use --sync-batch-norm, or a norm of each sample "
                          "(GroupNorm, LayerNorm)"));
      continue;
    }
    // Cohort's own modules declare how a batch may be divided (sample_granularity).
    if (class_name.starts_with("torch::") || class_name.starts_with("cohort::")) continue;
    std::vector<std::string> moved;
    for (const Json& buffer : module.at("buffers"))
      if (options.moved && options.moved(name + "." + buffer.get<std::string>())) moved.push_back(buffer.get<std::string>());
    if (!moved.empty())
      add(concat("keeps ", join(moved, ", "),
                 name_settings(
                     ", which training changes: statistics of a rank's part of the batch, as in batch norm? Use torch::nn::BatchNorm with "
                     "--sync-batch-norm, or a norm of each sample (GroupNorm, LayerNorm)")));
  }
  if (options.draws && !is_drawer_known)
    suspects.push_back(
        {"forward()", "",
         "draws from LibTorch's generator (torch::dropout, torch::rand), other numbers on each rank; cohort::Dropout draws the "
         "same ones under every layout"});
  if (suspects.empty() && options.batch_is_divided && modules.at("own_loss").get<bool>())
    suspects.push_back({"loss", "", "the model's own loss must be the mean over the samples that it is given, each by itself"});
  return suspects;
}

}  // namespace cohort

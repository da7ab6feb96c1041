#pragma once
// Models by name: the built-in families, and those that a user's program or plug-in registers with COHORT_MODEL.

#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/model/model_options.h"
#include "cohort/data/source/source.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

/// A module whose forward() takes one tensor and returns one; further parameters need defaults.
template <typename M>
concept OneTensorModule = std::derived_from<M, torch::nn::Module> && requires(M& module, at::Tensor input) {
  { module.forward(input) } -> std::convertible_to<at::Tensor>;
};
/// A type declared by TORCH_MODULE.
template <typename H>
concept ModuleHolder = requires { typename H::ContainedType; } && std::derived_from<H, torch::nn::ModuleHolder<typename H::ContainedType>>;

struct BuiltModelOptions {
  LayerGraph::Loss loss = {};  ///< Replaces the cross-entropy; see LayerGraph::Loss.
};

/// What a factory may return: a LayerGraph; a torch::nn::Sequential, each child of which becomes a layer under its own name that reads the
/// layer before it; any other module, as one layer "model", since what happens in its forward() cannot be seen. Error(kBadInput) for an
/// empty one.
struct COHORT_API BuiltModel {
  // NOLINTBEGIN(google-explicit-constructor): conversions are intended.
  BuiltModel(std::shared_ptr<LayerGraph> built, BuiltModelOptions options = {});
  BuiltModel(torch::nn::Sequential sequential, BuiltModelOptions options = {});
  template <ModuleHolder H>
  BuiltModel(const H& holder, BuiltModelOptions options = {})
      : BuiltModel(holder.is_empty() ? nullptr : holder.ptr(), std::move(options)) {}
  template <std::derived_from<torch::nn::Module> M>
    requires(!std::derived_from<M, LayerGraph>)
  BuiltModel(const std::shared_ptr<M>& module, BuiltModelOptions options = {})
      : graph(one_layer(module, function_of(module), std::move(options))) {}
  // NOLINTEND(google-explicit-constructor)

  std::shared_ptr<LayerGraph> graph;

 private:
  template <typename M>
  static LayerGraph::Function function_of(const std::shared_ptr<M>& module) {
    static_assert(OneTensorModule<M>,
                  "COHORT_MODEL: the public forward() of the module must take one at::Tensor and return one. Wrap a module that takes or "
                  "returns more (an LSTM) in one of your own whose forward() does, or build a cohort::LayerGraph");
    return [module](const LayerGraph::Inputs& in) -> at::Tensor {
      at::Tensor input = in.at(0);
      return module->forward(input);
    };
  }
  static std::shared_ptr<LayerGraph> one_layer(std::shared_ptr<torch::nn::Module> module, LayerGraph::Function function,
                                               BuiltModelOptions options);
};
using ModelFactory = std::function<BuiltModel(const ModelOptions&)>;

/// Registers under `name`; Error(kBadInput) where it is taken. Call before run_cli(); not thread-safe.
COHORT_API void register_model(const std::string& name, const std::string& help, ModelFactory factory);

struct ModelEntry {
  std::string name, help;
  ModelFactory factory;
};
/// Built-in and registered models, sorted by name.
COHORT_API const std::map<std::string, ModelEntry>& registered_models();
/// Error(kBadInput) that suggests the nearest name for an unknown one.
COHORT_API const ModelEntry& find_model(const std::string& name);

/// Builds `NAME[:key=value,...]` for this data with weights initialised from `seed` (the same on every rank and every layout). An unknown
/// name or key: Error(kBadInput) that suggests the nearest.
COHORT_API std::shared_ptr<LayerGraph> build_model(const std::string& specification, const DataShape& data, uint64_t seed);

namespace detail {
struct ModelRegistrar {
  ModelRegistrar(const char* name, ModelFactory factory) { register_model(name, "", std::move(factory)); }
};
}  // namespace detail

#define COHORT_CONCAT_(a, b) a##b
#define COHORT_CONCAT(a, b) COHORT_CONCAT_(a, b)
/// At namespace scope: COHORT_MODEL("mine", [](const cohort::ModelOptions& options) { return build(options); });
#define COHORT_MODEL(name, ...) static const ::cohort::detail::ModelRegistrar COHORT_CONCAT(cohort_model_, __COUNTER__)(name, __VA_ARGS__)

}  // namespace cohort

#include "cohort/models/graph/layer_graph.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/graph/recompute.h"

namespace cohort {

int LayerGraph::add_layer(const std::string& name, const std::string& kind, std::shared_ptr<torch::nn::Module> module, Function function,
                          std::vector<int> inputs) {
  const int index = static_cast<int>(layers_.size());
  if (name.empty() || name.find('.') != std::string::npos)
    fail(ErrorCode::kBadInput, "layer ", index, ": the name '", name,
         "' must be non-empty and without dots (a dot separates layer and parameter)");
  if (std::any_of(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.name == name; }))
    fail(ErrorCode::kBadInput, "layer ", index, ": the name '", name, "' is already taken by another layer of this model");
  if (!function) fail(ErrorCode::kBadInput, "layer '", name, "': it has no function");
  if (inputs.empty()) inputs.push_back(index - 1);  // The layer before; kInput for the first.
  static_assert(kInput == -1, "the layer before the first one is the input");
  for (const int input : inputs) {
    if (input < kInput || input >= index)
      fail(ErrorCode::kBadInput, "layer '", name, "': input ", input, " is not an earlier layer (expected ", kInput,
           " for the model's input, or 0 to ", index - 1, ")");
  }
  if (module) register_module(name, module);
  last_use_.push_back(index);  // Until a later layer reads it.
  for (const int input : inputs) {
    if (input != kInput) last_use_[static_cast<size_t>(input)] = index;
  }
  layers_.push_back({name, kind, std::move(inputs), std::move(module), std::move(function)});
  if (!recompute_.empty()) recompute_.push_back(false);
  return index;
}

void LayerGraph::replace_layer(size_t index, std::shared_ptr<torch::nn::Module> module, Function function) {
  Layer& layer = layers_.at(index);
  if (!function) fail(ErrorCode::kBadInput, "layer '", layer.name, "': it has no function");
  if (module && module != layer.module) {
    module->train(is_training());
    layer.module = layer.module ? replace_module(layer.name, std::move(module)) : register_module(layer.name, std::move(module));
  }
  layer.function = std::move(function);
}

void LayerGraph::drop_layer(size_t index) {
  Layer& layer = layers_.at(index);
  if (layer.module) unregister_module(layer.name);
  layer.module = nullptr;
  layer.function = nullptr;
}

void LayerGraph::set_recompute(std::vector<bool> layers) {
  if (!layers.empty() && layers.size() != layers_.size())
    fail(ErrorCode::kBadInput, "set_recompute: ", layers.size(), " flags for a model of ", layers_.size(), " layers");
  recompute_ = std::move(layers);
}

at::Tensor LayerGraph::run_layer(size_t layer, const Inputs& inputs) const {
  const Layer& one = layers_.at(layer);
  if (!one.function)
    fail(ErrorCode::kFailed, "layer '", one.name, "' is on another rank: a model that is cut into stages runs through its pipeline");
  try {
    if (!is_recomputed(layer)) return one.function(inputs);
    // Copies: the graph may change or be destroyed before backward.
    const auto run = [function = one.function, module = one.module](const Inputs& in) { return std::vector<at::Tensor>{function(in)}; };
    return recompute(run, inputs, one.module.get())[0];
  } catch (const std::exception& error) {
    if (!is_mismatch_error(error)) throw;
    fail_in_layer(*this, layer, inputs, error);
  }
}

at::Tensor LayerGraph::forward(const at::Tensor& input) {
  if (layers_.empty()) return input;
  const size_t num_layers = layers_.size();
  std::vector<at::Tensor> outputs(num_layers);
  Inputs arguments;
  arguments.reserve(2);
  for (size_t i = 0; i < num_layers; ++i) {
    const Layer& layer = layers_[i];
    for (auto source = layer.inputs.begin(); source != layer.inputs.end(); ++source) {
      if (*source == kInput) {
        arguments.push_back(input);
        continue;
      }
      at::Tensor& output = outputs[static_cast<size_t>(*source)];
      // The last use moves the tensor; a layer may read one output twice.
      const bool is_last_use = last_use_[static_cast<size_t>(*source)] == static_cast<int>(i) &&
                               std::find(source + 1, layer.inputs.end(), *source) == layer.inputs.end();
      arguments.push_back(is_last_use ? std::move(output) : output);
    }
    outputs[i] = run_layer(i, arguments);
    arguments.clear();  // Frees tensors after their last use; keeps the capacity.
    if (last_use_[i] == static_cast<int>(i) && i + 1 < num_layers) outputs[i].reset();
  }
  return std::move(outputs.back());
}

void LayerGraph::save(torch::serialize::OutputArchive& archive) const {
  if (is_part_)
    fail(ErrorCode::kBadInput,
         "torch::save: this rank has a part of the model (pp or tp); Parallel::save() writes all of it, for any layout");
  Module::save(archive);
}

void LayerGraph::load(torch::serialize::InputArchive& archive) {
  if (is_part_)
    fail(ErrorCode::kBadInput,
         "torch::load: this rank has a part of the model (pp or tp); load it before Parallel is made, or by Parallel::load()");
  Module::load(archive);
}

}  // namespace cohort

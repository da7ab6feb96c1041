#pragma once
// A model as a graph of named layers, which the planner cuts into stages. It is an ordinary torch::nn::Module whose parameters have the
// layers' names ("conv1.weight").

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// A torch::nn::ModuleHolder, such as torch::nn::Linear and all types that TORCH_MODULE declares.
template <typename T>
concept ModuleHandle = requires(const T& handle) { handle.ptr()->forward(at::Tensor()); };

/// Not thread-safe; one graph per rank.
class COHORT_API LayerGraph : public torch::nn::Module {
 public:
  using Inputs = std::vector<at::Tensor>;
  using Function = std::function<at::Tensor(const Inputs&)>;
  /// One number, the mean over the given samples: losses of parts of a batch, weighted by samples, must add up to that of the batch.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  /// Index of a layer; kInput is the model's input.
  static constexpr int kInput = -1;

  struct Layer {
    std::string name;                           ///< Unique, no dots.
    std::string kind;                           ///< "conv2d", "linear", "attention", ...: the key of placement tables.
    std::vector<int> inputs;                    ///< Layers whose outputs it reads, or kInput.
    std::shared_ptr<torch::nn::Module> module;  ///< Null for layers without parameters or state.
    Function function;
  };

  LayerGraph() : torch::nn::Module("LayerGraph") {}

  /// Adds a layer with a module, such as torch::nn::Linear(2, 3); `inputs` empty means the layer added last (or the model's input). Returns
  /// its index.
  template <ModuleHandle M>
  int add(const std::string& name, const std::string& kind, const M& module, std::vector<int> inputs = {}) {
    auto pointer = module.ptr();
    return add_layer(name, kind, pointer, [pointer](const Inputs& in) { return pointer->forward(in.at(0)); }, std::move(inputs));
  }
  /// Adds a layer that is a plain function of its inputs (at::Tensor(const Inputs&)); it must not keep state between calls.
  template <typename F>
    requires(!ModuleHandle<F>)
  int add(const std::string& name, const std::string& kind, F function, std::vector<int> inputs = {}) {
    return add_layer(name, kind, nullptr, Function(std::move(function)), std::move(inputs));
  }
  /// Adds a layer from its parts. Error(kBadInput) for a name that is taken, empty or holds a dot, and for an input that is not an earlier
  /// layer.
  int add_layer(const std::string& name, const std::string& kind, std::shared_ptr<torch::nn::Module> module, Function function,
                std::vector<int> inputs);

  const std::vector<Layer>& layers() const { return layers_; }
  /// Runs every layer in order; frees an intermediate result after its last use. The last layer's output is the model's.
  at::Tensor forward(const at::Tensor& input);
  /// Runs one layer as forward() does, recomputed in backward where set_recompute() says so. Error(kFailed) for a layer that was dropped;
  /// Error(kBadInput) that names model, layer and inputs where LibTorch refuses the shapes or types (model_errors.h).
  at::Tensor run_layer(size_t layer, const Inputs& inputs) const;

  /// Layers that keep only their inputs for backward and run again there (recompute.h); empty for none. Results stay the same bit for bit.
  /// Error(kBadInput) unless there is one flag a layer.
  void set_recompute(std::vector<bool> layers);
  bool is_recomputed(size_t layer) const { return !recompute_.empty() && recompute_[layer]; }
  /// Replaces the module (unless null) and function of a layer, e.g. by this rank's shard; name, kind and inputs stay.
  void replace_layer(size_t index, std::shared_ptr<torch::nn::Module> module, Function function);
  /// Frees the module and function of a layer that another rank has; index, name and kind stay.
  void drop_layer(size_t index);

  /// Whether tensors of other ranks were removed by replace_layer() or drop_layer(), so that it cannot be saved as a whole model.
  bool is_part() const { return is_part_; }
  void set_part() { is_part_ = true; }
  /// For torch::save and torch::load. Error(kBadInput) for a part of a model.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// The name in messages; the registry sets "model NAME".
  const std::string& title() const { return title_; }
  void set_title(std::string title) { title_ = std::move(title); }

  /// The loss of training and evaluation; empty: the cross-entropy over the output's last dimension.
  const Loss& loss() const { return loss_; }
  void set_loss(Loss loss, std::string name = "own") {
    loss_name_ = loss ? std::move(name) : "";
    loss_ = std::move(loss);
  }
  /// "own", "mse" where the data is a regression, "binary" where it has labels, or "": the cross-entropy.
  const std::string& loss_name() const { return loss_name_; }

  /// Granularity of a model whose batch must not be divided (batch norm over the whole batch).
  static constexpr int64_t kWholeBatch = INT64_C(1) << 40;
  /// Number of samples that must stay on one rank together (the ghost-batch-norm group); 1 for most models.
  int64_t sample_granularity() const { return sample_granularity_; }
  void set_sample_granularity(int64_t samples) { sample_granularity_ = samples; }

 private:
  std::vector<Layer> layers_;
  std::vector<int> last_use_;    ///< For each layer the last layer that reads its output, or itself where none does.
  std::vector<bool> recompute_;  ///< One flag a layer, or empty.
  int64_t sample_granularity_ = 1;
  bool is_part_ = false;
  std::string title_ = "this model";
  Loss loss_;
  std::string loss_name_;
};

}  // namespace cohort

#pragma once
// A model as named layers and the tensors between them. The graph is what the planner cuts into stages; as a module it is an ordinary
// torch::nn::Module whose parameters have the layers' names ("conv1.weight").

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

/// A torch::nn::ModuleHolder: what torch::nn::Linear and whatever TORCH_MODULE declares are.
template <typename T>
concept ModuleHandle = requires(const T& handle) { handle.ptr()->forward(at::Tensor()); };

/// Not thread-safe; one graph per rank.
class COHORT_API LayerGraph : public torch::nn::Module {
 public:
  using Inputs = std::vector<at::Tensor>;
  using Function = std::function<at::Tensor(const Inputs&)>;
  /// One number, the mean over the samples that it is given: weighted by samples, losses of parts must add up to that of the whole.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  /// Index of a layer; kInput is the model's input.
  static constexpr int kInput = -1;

  struct Layer {
    std::string name;                           ///< Unique, no dots.
    std::string kind;                           ///< "conv2d", "linear", "attention", ...: what a placement table is keyed by.
    std::vector<int> inputs;                    ///< Layers whose outputs it takes, or kInput.
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
  /// Adds a layer that is a plain function of its inputs (at::Tensor(const Inputs&)); it may not keep state between calls.
  template <typename F>
    requires(!ModuleHandle<F>)
  int add(const std::string& name, const std::string& kind, F function, std::vector<int> inputs = {}) {
    return add_layer(name, kind, nullptr, Function(std::move(function)), std::move(inputs));
  }
  /// What both of the above do. Error(kBadInput) for a name that is taken, empty or holds a dot, and for an input that is no earlier layer.
  int add_layer(const std::string& name, const std::string& kind, std::shared_ptr<torch::nn::Module> module, Function function,
                std::vector<int> inputs);

  const std::vector<Layer>& layers() const { return layers_; }
  /// Runs every layer in order; frees an intermediate result after its last use. The last layer's output is the model's.
  at::Tensor forward(const at::Tensor& input);
  /// One layer alone, as forward() does it: recomputed in backward where that was asked for. Error(kFailed) for one that was dropped;
  /// Error(kBadInput) that names model, layer and inputs where LibTorch says that they do not fit (model_errors.h).
  at::Tensor run_layer(size_t layer, const Inputs& inputs) const;

  /// Which layers keep only their inputs for backward and run again there (recompute.h); empty for none. The numbers stay the same.
  /// Error(kBadInput) unless there is one flag a layer.
  void set_recompute(std::vector<bool> layers);
  bool is_recomputed(size_t layer) const { return !recompute_.empty() && recompute_[layer]; }
  /// Another module (null: the layer keeps its own) and function for a layer whose name, kind and inputs stay: how a rank gets its part of
  /// it.
  void replace_layer(size_t index, std::shared_ptr<torch::nn::Module> module, Function function);
  /// Forgets a layer's module and function, and with them their memory: another rank has it. Its place, name and kind stay.
  void drop_layer(size_t index);

  /// Since replace_layer() or drop_layer() took tensors of other ranks out of it, on this rank: it cannot be saved as a whole model then.
  bool is_part() const { return is_part_; }
  void set_part() { is_part_ = true; }
  /// torch::save, torch::load. Error(kBadInput) for a part, whose tensors are not the model's.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// What messages call it; the registry makes it "model NAME".
  const std::string& title() const { return title_; }
  void set_title(std::string title) { title_ = std::move(title); }

  /// What is trained and evaluated in place of the cross-entropy of the output's last dimension; empty: that.
  const Loss& loss() const { return loss_; }
  void set_loss(Loss loss, std::string name = "own") {
    loss_name_ = loss ? std::move(name) : "";
    loss_ = std::move(loss);
  }
  /// "own", "mse" where the data is a regression, "binary" where it has labels, or "": the cross-entropy.
  const std::string& loss_name() const { return loss_name_; }

  /// Granularity of a model whose batch may not be divided at all (batch norm over the whole batch).
  static constexpr int64_t kWholeBatch = INT64_C(1) << 40;
  /// The smallest number of samples that may not be divided over ranks (the ghost-batch-norm group); 1 for most models.
  int64_t sample_granularity() const { return sample_granularity_; }
  void set_sample_granularity(int64_t samples) { sample_granularity_ = samples; }

 private:
  std::vector<Layer> layers_;
  std::vector<int> last_use_;    ///< Of each layer's output: the layer that reads it last, or itself when nobody does.
  std::vector<bool> recompute_;  ///< One a layer, or empty; layers added later are not recomputed.
  int64_t sample_granularity_ = 1;
  bool is_part_ = false;
  std::string title_ = "this model";
  Loss loss_;
  std::string loss_name_;
};

}  // namespace cohort

// Measures the time and memory of each layer of a model. A layer runs alone, on copies of its inputs that only it reads, so that its graph
// ends at its own inputs and weights.
//   forward          the layer's function, with gradients recorded.
//   backward, input  gradients of the inputs alone (none for the model's input); LibTorch skips the kernels of weights.
//   backward, weight gradients of inputs and weights together, less the former: the second part of a split backward. Weights alone would
//                    count the path through a layer of several operators twice. The addition to earlier micro-batches' gradients is added.
//   stash            first the blocks that the layer allocates in forward and that its graph still holds when its result is dropped. Then
//                    its output, if a layer that reads it holds it. So a storage counts for the layer that made it, and the stash of a
//                    stage is the sum over its layers.
//   working          the peak of forward and backward, with the stash freed on the way as in training, less what forward left and the
//                    gradients of weights, which are counted elsewhere.
//   weights          distinct storages of the layer's parameters and of the leaves of its graph. A shared weight counts for each layer.
//   loss             if it is given, its forward and backward are added to the last layer's.
// Times are medians; the gradient of every output is random. Cost: repeats + 4 forwards and about twice as many backwards of each layer.
//
// Allocations are observed through LibTorch's memory profiling hook of this thread. Memory that a library allocates by itself (oneDNN's
// scratch space) is not included.

#include "cohort/train/model/profile_layers.h"
#include "cohort/base/clock.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <unordered_set>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/graph/step_context.h"

namespace cohort {
namespace {

using torch::autograd::Node;

/// Restores at its end what a run in training mode changes.
class StateKeeper {
 public:
  explicit StateKeeper(LayerGraph& model)
      : model_(model), model_is_training_(model.is_training()), generator_(at::detail::getDefaultCPUGenerator()) {
    for (const auto& module : model.modules(/*include_self=*/false)) modes_.emplace_back(module, module->is_training());
    for (const at::Tensor& buffer : model.buffers()) buffers_.emplace_back(buffer, buffer.detach().clone());
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_state_ = generator_.get_state();
  }
  ~StateKeeper() {
    const c10::AutoGradMode no_gradients(false);
    model_.train(model_is_training_);
    // Parents come first, since train() sets all children.
    for (const auto& [module, is_training] : modes_) module->train(is_training);
    for (auto& [buffer, value] : buffers_) buffer.copy_(value);
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(generator_state_);
  }
  StateKeeper(const StateKeeper&) = delete;

 private:
  LayerGraph& model_;
  const bool model_is_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
  at::Generator generator_;
  at::Tensor generator_state_;
};

/// Blocks that this thread allocated while recorded and still holds.
class BlockRecorder final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* data, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      blocks_[data] = bytes;
      held_ += bytes;
      peak_ = std::max(peak_, held_);
    } else if (const auto found = blocks_.find(data); found != blocks_.end()) {
      held_ -= found->second;
      blocks_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  bool holds(const void* data) const { return blocks_.contains(data); }
  int64_t bytes() const { return held_; }
  int64_t peak_bytes() const { return peak_; }

 private:
  std::map<const void*, int64_t> blocks_;
  int64_t held_ = 0, peak_ = 0;
};

/// Inputs of one run of one layer.
struct Arguments {
  std::vector<at::Tensor> leaves;      // The distinct inputs that need gradients.
  std::map<int, at::Tensor> of_input;  // Copies, since the layer may write into them.
  LayerGraph::Inputs in_order;

  Arguments(const LayerGraph::Layer& layer, const at::Tensor& model_input, const std::vector<at::Tensor>& outputs) {
    for (const int input : layer.inputs) {
      if (!of_input.contains(input)) {
        const at::Tensor& value = input == LayerGraph::kInput ? model_input : outputs[input];
        at::Tensor leaf = value.detach();
        if (input != LayerGraph::kInput && (leaf.is_floating_point() || leaf.is_complex())) leaves.push_back(leaf.requires_grad_(true));
        of_input[input] = leaf.clone();
      }
      in_order.push_back(of_input[input]);
    }
  }
};

/// The leaves of a graph except `inputs`.
std::vector<at::Tensor> weights_of_graph(const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> next{output.grad_fn().get()};
  std::vector<at::Tensor> weights;
  while (!next.empty()) {
    Node* const node = next.back();
    next.pop_back();
    if (!node || !seen.insert(node).second) continue;
    if (auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      const bool is_input =
          std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) { return input.is_same(leaf->variable); });
      if (!is_input) weights.push_back(leaf->variable);
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) next.push_back(edge.function.get());
  }
  return weights;
}

/// Storages that a run of a layer keeps.
struct Kept {
  int64_t bytes_by_itself = 0;
  bool output_by_itself = false;
  int64_t output_storage_bytes = 0;
  const void* output_storage = nullptr;  // Null if the output is a view of an input,
  int alias_of = LayerGraph::kInput;     // of this one.
  std::vector<int> inputs;               // Inputs that it holds.
};

class LayerProfiler {
 public:
  LayerProfiler(LayerGraph& model, const at::Tensor& input, const ProfileOptions& options)
      : model_(model), input_(input.detach()), options_(options), outputs_(model.layers().size()), maker_(model.layers().size()) {
    for (size_t i = 0; i < model.layers().size(); ++i)
      for (const int source : model.layers()[i].inputs)
        if (source >= 0) last_use_[source] = static_cast<int>(i);
  }

  Profile run() {
    Profile profile{.model = model_.name(), .micro_batch = input_.size(0)};
    for (int i = 0; i < static_cast<int>(model_.layers().size()); ++i) {
      const LayerGraph::Layer& layer = model_.layers()[i];
      if (!layer.function) fail(ErrorCode::kBadInput, "profile: layer '", layer.name, "' is not on this rank");
      LayerProfile& cost = profile.layers.emplace_back();
      cost.name = layer.name, cost.kind = layer.kind;
      measure_memory(i, profile.layers);
      cost.working_bytes = working_bytes(layer);
      measure_times(i, cost);
      cost.output_bytes = static_cast<int64_t>(outputs_[i].nbytes());
      for (const int source : std::set<int>(layer.inputs.begin(), layer.inputs.end())) {
        profile.edges.push_back({source, i});
        if (source >= 0 && last_use_[source] == i) outputs_[source].reset();
      }
    }
    if (options_.loss) add_loss(outputs_.back(), profile.layers.back());
    add_tied(profile);
    return profile;
  }

 private:
  void add_tied(Profile& profile) const {
    std::map<const void*, int> owners;
    std::set<std::pair<int, int>> tied;
    for (int i = 0; i < static_cast<int>(model_.layers().size()); ++i) {
      if (!model_.layers()[i].module) continue;
      for (const at::Tensor& parameter : model_.layers()[i].module->parameters())
        if (const auto [owner, is_new] = owners.emplace(parameter.unsafeGetTensorImpl(), i); !is_new && owner->second != i)
          tied.emplace(owner->second, i);
    }
    profile.tied.assign(tied.begin(), tied.end());
  }

  void add_loss(const at::Tensor& model_output, LayerProfile& last) const {
    std::vector<double> forward_seconds, backward_seconds;
    {
      const at::Tensor output = model_output.detach().clone().requires_grad_();
      const auto recorder = std::make_shared<BlockRecorder>();
      const c10::DebugInfoGuard recording(c10::DebugInfoKind::PROFILER_STATE, recorder);
      torch::autograd::grad({options_.loss(output)}, {output});
      // The output is held until the end of the step.
      last.working_bytes = std::max(last.working_bytes, recorder->peak_bytes()) + last.output_bytes;
    }
    for (int run = 0; run <= options_.repeats; ++run) {
      const at::Tensor output = model_output.detach().clone().requires_grad_();
      at::Tensor loss;
      const double forward_time = seconds_of([&] { loss = options_.loss(output); });
      const double backward_time = seconds_of([&] { torch::autograd::grad({loss}, {output}); });
      if (run == 0) continue;  // Warms up.
      forward_seconds.push_back(forward_time), backward_seconds.push_back(backward_time);
    }
    last.forward_seconds += median(forward_seconds);
    last.backward_input_seconds += median(backward_seconds);
  }

  /// Adds the layer's name to LibTorch's errors.
  template <typename Call>
  void named(const LayerGraph::Layer& layer, const LayerGraph::Inputs& inputs, const Call& call) const {
    try {
      call();
    } catch (const std::exception& error) {
      if (!is_mismatch_error(error)) throw;
      fail_in_layer(model_, static_cast<size_t>(&layer - model_.layers().data()), inputs, error);
    }
  }

  at::Tensor forward(const LayerGraph::Layer& layer, const LayerGraph::Inputs& inputs) const {
    const AutocastScope autocast(options_.precision, input_.device().type());
    at::Tensor output;
    named(layer, inputs, [&] { output = layer.function(inputs); });
    if (!output.defined()) fail(ErrorCode::kBadInput, "profile: layer '", layer.name, "' gives no tensor");
    return output;
  }

  Kept find_kept(const LayerGraph::Layer& layer) const {
    const Arguments arguments(layer, input_, outputs_);
    std::map<int, std::pair<size_t, size_t>> counts;  // References to an input and to its storage.
    for (const auto& [input, tensor] : arguments.of_input) counts[input] = {tensor.use_count(), tensor.storage().use_count()};

    Kept kept;
    const auto recorder = std::make_shared<BlockRecorder>();
    const c10::DebugInfoGuard recording(c10::DebugInfoKind::PROFILER_STATE, recorder);
    at::Tensor output = forward(layer, arguments.in_order);
    const auto graph = output.grad_fn();
    const void* const data = output.storage().data();
    kept.output_storage_bytes = static_cast<int64_t>(output.storage().nbytes());
    if (recorder->holds(data)) kept.output_storage = data;
    for (const auto& [input, tensor] : arguments.of_input)
      if (tensor.storage().data() == data) kept.alias_of = input;
    output.reset();

    kept.bytes_by_itself = recorder->bytes();
    kept.output_by_itself = kept.output_storage && recorder->holds(data);
    for (const auto& [input, tensor] : arguments.of_input)
      if (tensor.use_count() > counts[input].first || tensor.storage().use_count() > counts[input].second) kept.inputs.push_back(input);
    return kept;
  }

  int64_t working_bytes(const LayerGraph::Layer& layer) const {
    int64_t most = 0;
    for (const bool of_weights : {false, true}) {  // Gradients of weights may hide an earlier peak.
      const Arguments arguments(layer, input_, outputs_);
      const auto recorder = std::make_shared<BlockRecorder>();
      const c10::DebugInfoGuard recording(c10::DebugInfoKind::PROFILER_STATE, recorder);
      const at::Tensor output = forward(layer, arguments.in_order);
      const int64_t kept = recorder->bytes();
      most = std::max(most, recorder->peak_bytes() - kept);
      if (!output.requires_grad()) break;
      std::vector<at::Tensor> wanted = arguments.leaves;
      if (of_weights)
        for (const at::Tensor& weight : weights_of_graph(output, arguments.leaves)) wanted.push_back(weight);
      if (wanted.empty()) continue;
      const at::Tensor gradient = at::zeros_like(output.detach());
      int64_t gradient_bytes = 0;
      named(layer, arguments.in_order, [&] {
        const auto made = torch::autograd::grad({output}, wanted, {gradient}, /*retain_graph=*/false, false, /*allow_unused=*/true);
        for (size_t i = arguments.leaves.size(); i < made.size(); ++i)
          if (made[i].defined()) gradient_bytes += static_cast<int64_t>(made[i].nbytes());
      });
      most = std::max(most, recorder->peak_bytes() - kept - gradient_bytes);
    }
    return most;
  }

  /// Fills in the layer's own stash and completes those of the layers whose outputs it keeps.
  void measure_memory(int index, std::vector<LayerProfile>& costs) {
    const LayerGraph::Layer& layer = model_.layers()[index];
    const Kept kept = find_kept(layer);
    LayerProfile& cost = costs[index];
    cost.stash_bytes = kept.bytes_by_itself;
    cost.output_kept = kept.output_by_itself ? OutputKept::kByItself : OutputKept::kNo;
    if (kept.output_storage) maker_[index] = {index, kept.output_storage_bytes};
    else if (kept.alias_of >= 0) maker_[index] = maker_[kept.alias_of];

    for (const int input : kept.inputs) {
      if (input < 0 || maker_[input].layer < 0) continue;  // The model's input counts for no layer.
      LayerProfile& maker = costs[maker_[input].layer];
      if (maker.output_kept == OutputKept::kNo) maker.stash_bytes += maker_[input].bytes;
      maker.output_kept = OutputKept::kByReaders;
    }
  }

  /// Also stores the layer's output for its readers.
  void measure_times(int index, LayerProfile& cost) {
    const LayerGraph::Layer& layer = model_.layers()[index];
    std::vector<double> forward_seconds, input_seconds, whole_seconds;
    std::vector<at::Tensor> sums;  // Sums of weight gradients.
    for (int run = 0; run <= options_.repeats; ++run) {
      Arguments arguments(layer, input_, outputs_);
      at::Tensor output;
      const double forward_time = seconds_of([&] { output = forward(layer, arguments.in_order); });
      double input_time = 0, whole_time = 0;
      std::vector<at::Tensor> wanted = arguments.leaves;
      if (output.requires_grad()) {
        const std::vector<at::Tensor> weights = weights_of_graph(output, arguments.leaves);
        if (run == 0) cost.weight_bytes = bytes_of_weights(layer, weights);
        const at::Tensor gradient = at::randn_like(output.detach());
        std::vector<at::Tensor> made;
        const auto backward = [&] {
          named(layer, arguments.in_order,
                [&] { made = torch::autograd::grad({output}, wanted, {gradient}, /*retain_graph=*/true, false, /*allow_unused=*/true); });
        };
        if (!wanted.empty()) input_time = whole_time = seconds_of(backward);
        if (!weights.empty()) {
          wanted.insert(wanted.end(), weights.begin(), weights.end());
          whole_time = seconds_of(backward);
          made.erase(made.begin(), made.begin() + static_cast<int64_t>(arguments.leaves.size()));
          whole_time += add_up(made, sums);
        }
      } else if (run == 0) {
        cost.weight_bytes = bytes_of_weights(layer, {});
      }
      if (run == options_.repeats) outputs_[index] = output.detach();
      if (run == 0) continue;  // Warms up.
      forward_seconds.push_back(forward_time), input_seconds.push_back(input_time), whole_seconds.push_back(whole_time);
    }
    cost.forward_seconds = median(forward_seconds);
    cost.backward_input_seconds = median(input_seconds);
    cost.backward_weight_seconds = std::max(0.0, median(whole_seconds) - cost.backward_input_seconds);
  }

  /// Seconds of adding gradients to earlier ones, as backward() does in `.grad`.
  double add_up(std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& sums) const {
    const c10::AutoGradMode no_gradients(false);
    if (sums.empty()) return sums.swap(gradients), 0;
    return seconds_of([&] {
      for (size_t i = 0; i < sums.size(); ++i)
        if (sums[i].defined()) sums[i].add_(gradients[i]);
    });
  }

  template <typename Call>
  double seconds_of(const Call& call) const {
    wait_for_device();
    const auto start = std::chrono::steady_clock::now();
    call();
    wait_for_device();
    return seconds_since(start);
  }
  void wait_for_device() const {
    if (!input_.is_cpu()) c10::impl::VirtualGuardImpl(input_.device().type()).synchronizeDevice(input_.device().index());
  }

  static int64_t bytes_of_weights(const LayerGraph::Layer& layer, std::vector<at::Tensor> weights) {
    if (layer.module)
      for (const at::Tensor& parameter : layer.module->parameters()) weights.push_back(parameter);
    std::map<const void*, int64_t> storages;
    for (const at::Tensor& weight : weights)
      if (weight.defined()) storages[weight.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(weight.storage().nbytes());
    int64_t sum = 0;
    for (const auto& [storage, bytes] : storages) sum += bytes;
    return sum;
  }

  struct Maker {
    int layer = LayerGraph::kInput;
    int64_t bytes = 0;  // Size of the storage.
  };

  LayerGraph& model_;
  const at::Tensor input_;
  const ProfileOptions options_;
  std::vector<at::Tensor> outputs_;  // Until their last use.
  std::map<int, int> last_use_;
  std::vector<Maker> maker_;  // Makers of the outputs' storages.
};

}  // namespace

Profile profile_layers(LayerGraph& model, const at::Tensor& input, const ProfileOptions& options) {
  if (model.layers().empty()) fail(ErrorCode::kBadInput, "profile: the model has no layers");
  if (!input.defined() || input.dim() < 1 || input.size(0) < 1)
    fail(ErrorCode::kBadInput, "profile: the input must be a micro-batch of at least one sample");
  if (options.repeats < 1) fail(ErrorCode::kBadInput, "profile: ", options.repeats, " repeats");
  const StateKeeper keeper(model);
  const StepContextScope step({});  // Dropout draws as it does in training.
  const c10::AutoGradMode with_gradients(true);
  model.train();
  return LayerProfiler(model, input, options).run();
}

}  // namespace cohort

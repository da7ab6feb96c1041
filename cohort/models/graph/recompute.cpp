// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4) for any function of tensors.
//
// Steps, forward: (1) save the generators' states, the step context and the autocast state; (2) run the function on detached inputs; (3)
// walk the small graph of this run and collect the edges that leave it: to parameters, and to outside tensors that the function reads; (4)
// drop that graph with all it saved and put one node in its place, with the edges of the inputs and those that leave. Backward of the node:
// (5) run the function again under the saved state; (6) propagate the gradients through the new graph as far as its ends; (7) return them
// along the node's edges.
//
// Cost: a second forward; memory of the inputs of each call, and of the activations of one call at a time (in the first run as in the
// second, so that the peak of a step is the same as if the first run had kept nothing).
//
// Where we differ: PyTorch's reentrant checkpoint runs a backward inside of backward, which adds to `.grad` unnoticed by the outer one:
// hooks of a weight that is also used elsewhere run twice, and a data-parallel exchange ends early. Here the outer backward sees all edges,
// so it sums and reports each gradient once. The first run records a graph also because kernels are chosen by whether gradients are needed
// (LSTM, attention), and both runs must give the same bits.
#include "cohort/models/graph/recompute.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"

namespace cohort {
namespace {

// What recompute() restores so that the second run of a function is like the first: random numbers, step context, autocast, buffers.

/// The state of LibTorch's random generators when it was constructed.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Device>& devices) {
    for (const at::Device& device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }
  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator handle = generator;
      const std::lock_guard<std::mutex> lock(handle.mutex());
      handle.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// The thread's autocast state when it was constructed.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Device>& devices) : cached_(at::autocast::is_autocast_cache_enabled()) {
    for (const at::Device& device : devices) {
      const at::DeviceType type = device.type();
      if (at::autocast::is_autocast_available(type))
        states_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    }
  }
  void restore() const {
    for (const State& state : states_) {
      at::autocast::set_autocast_enabled(state.type, state.enabled);
      at::autocast::set_autocast_dtype(state.type, state.dtype);
    }
    at::autocast::set_autocast_cache_enabled(cached_);
  }
  /// Cached casts of weights belong to the graph in which they were made: a run must not reuse those of another graph, nor leave its own
  /// behind when its graph is cut. Does nothing where autocast was off.
  void clear_cached_casts() const {
    if (std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.enabled; })) at::autocast::clear_cache();
  }

 private:
  struct State {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<State> states_;
  bool cached_;
};

std::vector<at::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices{at::kCPU};
  for (const at::Tensor& input : inputs)
    if (input.defined() && std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  return devices;
}

/// Both states for the CPU and the inputs' devices, and the thread's step context.
struct ForwardState {
  explicit ForwardState(const std::vector<at::Tensor>& inputs) : devices(devices_of(inputs)), random(devices), autocast(devices) {
    if (const StepContext* context = current_step_context()) step = *context;
  }

  std::vector<at::Device> devices;
  RandomState random;
  AutocastState autocast;
  std::optional<StepContext> step;
};

/// Applies a state for its lifetime. Error(kBadInput) inside of a step for a state from outside of one.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state) : random_before_(state.devices), autocast_before_(state.devices), state_(state) {
    if (!state.step && current_step_context() != nullptr)
      fail(ErrorCode::kBadInput, "recompute: forward ran outside of a StepContextScope and backward runs inside of one (step ",
           current_step_context()->step, "), so dropout would draw other masks; set the scope around both");
    if (state.step) step_.emplace(*state.step);
    state.random.restore();
    state.autocast.restore();
    at::autocast::increment_nesting();
    state.autocast.clear_cached_casts();
  }
  ~ForwardStateScope() {
    state_.autocast.clear_cached_casts();
    at::autocast::decrement_nesting();
    autocast_before_.restore();
    random_before_.restore();
  }
  ForwardStateScope(const ForwardStateScope&) = delete;

 private:
  RandomState random_before_;
  AutocastState autocast_before_;
  const ForwardState& state_;
  std::optional<StepContextScope> step_;
};

/// Restores the values of a module's buffers when the returned object is destroyed, without changing their versions. Null: does nothing.
[[nodiscard]] auto keep_buffers(const torch::nn::Module* module) {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;
  if (module != nullptr)
    for (const at::Tensor& buffer : module->buffers())
      if (buffer.defined()) buffers.emplace_back(buffer, buffer.detach().clone());
  return c10::make_scope_exit([buffers = std::move(buffers)] {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, values] : buffers) buffer.variable_data().copy_(values);  // variable_data() has a version of its own.
  });
}

// The graph of a run.

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

thread_local int recompute_depth = 0;

/// A leaf of the graph of a run: gradients are captured here, so hooks of a weight never see a part of its gradient.
struct End : Node {
  End() : Node(std::numeric_limits<uint64_t>::max()) {}
  /// Captures the gradient of `edge`.
  explicit End(const Edge& edge) : End() { input_metadata_.emplace_back(edge.function->input_metadata(edge.input_nr)); }
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "cohort::RecomputeEnd"; }
};

/// The inputs detached from the graph; those that need gradients get input i of `end` as their history.
Tensors detached_inputs(const Tensors& inputs, const c10::intrusive_ptr<End>& end) {
  Tensors own;
  for (const at::Tensor& input : inputs) {
    own.push_back(input.defined() ? input.detach() : at::Tensor());
    if (input.defined() && input.requires_grad()) torch::autograd::set_history(own.back(), end);
    else end->add_input_metadata(Node::undefined_input());
  }
  return own;
}

/// Calls visit(edge) for `edges` and all edges behind them, once for each node that has them; follows those for which it returns true.
template <typename Visit>
void visit_edges(edge_list& edges, const Visit& visit) {
  std::unordered_set<Node*> seen;
  std::vector<edge_list*> open{&edges};
  while (!open.empty()) {
    edge_list& next = *open.back();
    open.pop_back();
    for (Edge& edge : next)
      if (edge.is_valid() && visit(edge) && seen.insert(edge.function.get()).second) open.push_back(&edge.function->next_edges());
  }
}

/// One run of the function: its outputs and the edges at which gradients enter its graph (invalid where an output needs none).
struct Run {
  Tensors outputs;
  edge_list roots;

  Run(const Function& function, const Tensors& own_inputs) : outputs(function(own_inputs)) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined())
        fail(ErrorCode::kBadInput, "recompute: output ", i, " of ", outputs.size(), " of the function is undefined");
      roots.push_back(outputs[i].requires_grad() ? torch::autograd::impl::gradient_edge(outputs[i]) : Edge());
    }
  }
};

/// Replaces the graph of a run. Edges: one for each input, then those that leave the run.
class RecomputeNode : public Node {
 public:
  RecomputeNode(Function function, const Tensors& inputs, torch::nn::Module* module, ForwardState state, edge_list leaving)
      : function_(std::move(function)),
        module_(module),
        state_(std::move(state)),
        num_inputs_(inputs.size()),
        leaving_(std::move(leaving)) {
    for (const at::Tensor& input : inputs) {
      saved_.emplace_back(input, /*is_output=*/false);
      const bool needs = input.defined() && input.requires_grad();
      add_next_edge(needs ? torch::autograd::impl::gradient_edge(input) : Edge());
    }
    for (const Edge& edge : leaving_) {
      add_next_edge(edge);
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get());
      versions_.push_back(leaf ? leaf->variable._version() : 0);
    }
  }
  std::string name() const override { return "cohort::Recompute"; }
  /// Indices of the outputs that need gradients, in the order of this node's inputs.
  std::vector<size_t> differentiable;
  size_t num_function_outputs = 0;

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (torch::autograd::SavedVariable& saved : saved_) saved.reset_data();
    function_ = nullptr;
    leaving_.clear();
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (at::GradMode::is_enabled())
      fail(ErrorCode::kBadInput, "recompute: second derivatives are not supported; call backward without create_graph");
    if (!function_)
      fail(ErrorCode::kBadInput, "recompute: backward ran a second time through a freed graph; call the first with retain_graph");
    variable_list result(next_edges_.size());
    if (std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) { return gradient.defined(); })) return result;
    check_versions();
    Tensors inputs;
    for (const torch::autograd::SavedVariable& saved : saved_) inputs.push_back(saved.unpack());

    const auto kept_buffers = keep_buffers(module_);
    auto end = c10::make_intrusive<End>();
    Run run = run_again(detached_inputs(inputs, end));
    const edge_list ends = cut(run);
    edge_list roots, wanted;
    variable_list root_gradients;
    std::vector<size_t> edge_indices;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      roots.push_back(run.roots[differentiable[i]]);
      root_gradients.push_back(std::move(gradients[i]));
    }
    run.outputs.clear();  // So that operators free what they saved as soon as they are done.
    run.roots.clear();
    for (size_t i = 0; i < next_edges_.size(); ++i) {
      if (!task_should_compute_output(i)) continue;
      edge_indices.push_back(i);
      wanted.push_back(i < num_inputs_ ? Edge(end, static_cast<uint32_t>(i)) : ends[i - num_inputs_]);
    }
    if (wanted.empty()) return result;
    variable_list found = torch::autograd::Engine::get_default_engine().execute(roots, root_gradients, /*keep_graph=*/false,
                                                                                /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
    for (size_t i = 0; i < edge_indices.size(); ++i) result[edge_indices[i]] = std::move(found[i]);
    return result;
  }

 private:
  void check_versions() const {
    for (size_t i = 0; i < leaving_.size(); ++i) {
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(leaving_[i].function.get());
      if (leaf != nullptr && leaf->variable._version() != versions_[i])
        fail(ErrorCode::kBadInput, "recompute: a parameter of shape ", leaf->variable.sizes(),
             " was changed between forward and backward (by an optimizer step?), so the second run would not repeat the first");
    }
  }

  Run run_again(const Tensors& own_inputs) const {
    ++recompute_depth;
    const auto recomputing = c10::make_scope_exit([] { --recompute_depth; });
    const ForwardStateScope same_state(state_);
    const at::AutoGradMode record(true);
    Run run(function_, own_inputs);
    if (run.outputs.size() != num_function_outputs)
      fail(ErrorCode::kFailed, "recompute: the function gave ", num_function_outputs, " outputs in forward and ", run.outputs.size(),
           " in backward; it must do the same both times");
    for (const size_t output : differentiable)
      if (!run.roots[output].is_valid())
        fail(ErrorCode::kFailed, "recompute: output ", output,
             " needed a gradient in forward and needs none in backward; the function must do the same both times");
    return run;
  }

  /// Ends the run's graph at the edges that leave it; returns the ends, one for each of these edges.
  edge_list cut(Run& run) const {
    std::unordered_map<Edge, Edge> end_of;
    edge_list ends;
    for (const Edge& leaving : leaving_) {
      ends.emplace_back(c10::make_intrusive<End>(leaving), 0);
      end_of.emplace(leaving, ends.back());
    }
    visit_edges(run.roots, [&](Edge& edge) {
      if (const auto found = end_of.find(edge); found != end_of.end()) {
        edge = found->second;
        return false;
      }
      if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get()))
        fail(ErrorCode::kFailed, "recompute: the second run read a parameter of shape ", leaf->variable.sizes(),
             " that the first did not; the function must do the same both times");
      return true;
    });
    return ends;
  }

  Function function_;
  torch::nn::Module* module_;
  ForwardState state_;
  size_t num_inputs_;
  edge_list leaving_;  ///< A copy from forward: an enclosing run cuts the node's own edges.
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<int64_t> versions_;  ///< Versions of the parameters that it read; 0 for edges to other tensors.
};

/// The edges that leave a run's graph: to parameters, and to nodes older than its first one.
edge_list leaving_edges(Run& run, const Node* end, uint64_t first_node) {
  edge_list leaving;
  std::unordered_set<Edge> seen;
  visit_edges(run.roots, [&](const Edge& edge) {
    if (edge.function.get() == end) return false;
    const bool own = edge.function->sequence_nr() >= first_node && dynamic_cast<const AccumulateGrad*>(edge.function.get()) == nullptr;
    if (!own && seen.insert(edge).second) leaving.push_back(edge);
    return own;
  });
  return leaving;
}

}  // namespace

bool is_recomputing() { return recompute_depth > 0; }

Tensors recompute(const Function& function, const Tensors& inputs, torch::nn::Module* module) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  ForwardState state(inputs);
  state.autocast.clear_cached_casts();
  auto end = c10::make_intrusive<End>();
  const uint64_t first_node = at::sequence_number::peek();
  Run run(function, detached_inputs(inputs, end));
  auto node = c10::make_intrusive<RecomputeNode>(function, inputs, module, std::move(state), leaving_edges(run, end.get(), first_node));
  node->num_function_outputs = run.outputs.size();
  Tensors results;
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    results.push_back(run.outputs[i].detach());
    if (!run.roots[i].is_valid()) continue;
    node->differentiable.push_back(i);
    torch::autograd::set_history(results.back(), node);
  }
  return results;
}

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input, torch::nn::Module* module) {
  return recompute([function](const Tensors& inputs) { return Tensors{function(inputs[0])}; }, Tensors{input}, module)[0];
}

}  // namespace cohort

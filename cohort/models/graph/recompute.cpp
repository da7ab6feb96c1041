// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4) for any function of tensors.
//
// Steps, forward: (1) note the generators' states, the step context and the autocast state; (2) run the function on inputs that are cut off
// from the graph; (3) walk the small graph that this made, and note the edges that leave it: parameters, and tensors from outside that the
// function reads; (4) drop that graph with all it saved, and put one node in its place, whose edges are those of the inputs and those that
// leave. Backward of the node: (5) run the function again under the noted state; (6) send the gradients through the new graph as far as its
// ends; (7) return them along the node's edges.
//
// Cost: a second forward; memory of the inputs of each call, and of the activations of one call at a time (in the first run as in the
// second, so that the peak of a step is the same as if the first run had kept nothing).
//
// Where we differ: PyTorch's reentrant checkpoint runs a backward of its own inside of backward, which adds to `.grad` behind the outer
// one's back: hooks of a weight that is used elsewhere too run twice, and a data-parallel exchange ends early. Here the outer backward sees
// all edges, so it sums and reports each gradient once. The first run records a graph for a second reason: kernels are chosen by whether
// gradients are needed (LSTM, attention), and both runs must give the same bits.
#include "cohort/models/graph/recompute.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
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

// What recompute() puts back so that a second run of a function is like the first: random numbers, step context, autocast, buffers.

/// LibTorch's random generators as they were when it was made.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Device>& devices);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// This thread's autocast state as it was when it was made.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Device>& devices);
  void restore() const;
  /// Casts of weights belong to the graph that they were made in: a run must neither find those of others nor, when its graph is cut, leave
  /// its own. Without effect where autocast was off.
  void forget_casts() const;

 private:
  struct State {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<State> states_;
  bool cached_;
};

/// All of them, and the calling thread's step context.
struct ForwardState {
  explicit ForwardState(const std::vector<at::Tensor>& inputs);

  std::vector<at::Device> devices;  ///< The CPU and the inputs' devices: whose generators and autocast states count.
  RandomState random;
  AutocastState autocast;
  std::optional<StepContext> step;
};

/// Puts a state in force, and at its end what was before. Error(kBadInput) inside of a step for a state from outside of one.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;

 private:
  RandomState random_before_;
  AutocastState autocast_before_;
  const ForwardState& state_;
  std::optional<StepContextScope> step_;
};

/// At its end gives a module's buffers their values back, as if nobody had written them: their versions stay. Null: does nothing.
class BufferScope {
 public:
  explicit BufferScope(const torch::nn::Module* module);
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

std::vector<at::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices{at::kCPU};
  for (const at::Tensor& input : inputs)
    if (input.defined() && std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  return devices;
}

RandomState::RandomState(const std::vector<at::Device>& devices) {
  for (const at::Device& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() const {
  for (const auto& [generator, state] : states_) {
    at::Generator handle = generator;
    const std::lock_guard<std::mutex> lock(handle.mutex());
    handle.set_state(state);
  }
}

AutocastState::AutocastState(const std::vector<at::Device>& devices) : cached_(at::autocast::is_autocast_cache_enabled()) {
  for (const at::Device& device : devices) {
    if (!at::autocast::is_autocast_available(device.type())) continue;
    states_.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()), at::autocast::get_autocast_dtype(device.type())});
  }
}

void AutocastState::restore() const {
  for (const State& state : states_) {
    at::autocast::set_autocast_enabled(state.type, state.enabled);
    at::autocast::set_autocast_dtype(state.type, state.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cached_);
}

void AutocastState::forget_casts() const {
  if (std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.enabled; })) at::autocast::clear_cache();
}

ForwardState::ForwardState(const std::vector<at::Tensor>& inputs) : devices(devices_of(inputs)), random(devices), autocast(devices) {
  if (const StepContext* context = current_step_context()) step = *context;
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : random_before_(state.devices), autocast_before_(state.devices), state_(state) {
  if (!state.step && current_step_context() != nullptr)
    fail(ErrorCode::kBadInput, "recompute: forward ran outside of a StepContextScope and backward runs inside of one (step ",
         current_step_context()->step, "), so dropout would draw other masks; set the scope around both");
  if (state.step) step_.emplace(*state.step);
  state.random.restore();
  state.autocast.restore();
  at::autocast::increment_nesting();
  state.autocast.forget_casts();
}

ForwardStateScope::~ForwardStateScope() {
  state_.autocast.forget_casts();
  at::autocast::decrement_nesting();
  autocast_before_.restore();
  random_before_.restore();
}

BufferScope::BufferScope(const torch::nn::Module* module) {
  if (module == nullptr) return;
  for (const at::Tensor& buffer : module->buffers())
    if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
}

BufferScope::~BufferScope() {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, values] : buffers_) buffer.variable_data().copy_(values);  // variable_data: versions of its own.
}

// The recomputation itself.

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

thread_local int num_runs_under_way = 0;

class RecomputingScope {
 public:
  RecomputingScope() { ++num_runs_under_way; }
  ~RecomputingScope() { --num_runs_under_way; }
  RecomputingScope(const RecomputingScope&) = delete;
};

/// Where the graph of a run ends: gradients are captured here, so no hook of a weight sees a part of its gradient.
struct End : Node {
  End() : Node(std::numeric_limits<uint64_t>::max()) {}
  /// Takes the gradient that belongs to `edge`.
  explicit End(const Edge& edge) : End() { input_metadata_.emplace_back(edge.function->input_metadata(edge.input_nr)); }
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "cohort::RecomputeEnd"; }
};

/// The inputs of a run: the same values, and for those that need gradients input i of `end` as their history.
Tensors cut_off(const Tensors& inputs, const c10::intrusive_ptr<End>& end) {
  Tensors own;
  for (const at::Tensor& input : inputs) {
    own.push_back(input.defined() ? input.detach() : at::Tensor());
    if (input.defined() && input.requires_grad()) torch::autograd::set_history(own.back(), end);
    else end->add_input_metadata(Node::undefined_input());
  }
  return own;
}

/// Calls visit(edge) for the edges in `edges` and all behind them, once for each node that has them; follows those for which it says true.
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

/// One run of the function: its outputs, and the edges at which gradients enter its graph (invalid where an output needs none).
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

/// Stands for the whole run. Edges: one an input, then those that leave the run.
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
  /// Outputs of the function that need gradients, by number, in the order of this node's inputs.
  std::vector<size_t> differentiable;
  size_t num_function_outputs = 0;

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (torch::autograd::SavedVariable& saved : saved_) saved.reset_data();
    function_ = nullptr;
    leaving_.clear();
  }

 protected:
  variable_list apply(variable_list&& gradients) override;

 private:
  void check_versions() const;
  Run run_again(const Tensors& own_inputs) const;
  edge_list cut(Run& run) const;

  Function function_;
  torch::nn::Module* module_;
  ForwardState state_;
  size_t num_inputs_;
  edge_list leaving_;  ///< As they were in forward: a run around this one cuts the node's own.
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<int64_t> versions_;  ///< Of the parameters that it read; 0 for edges to other tensors.
};

void RecomputeNode::check_versions() const {
  for (size_t i = 0; i < leaving_.size(); ++i) {
    const auto* leaf = dynamic_cast<const AccumulateGrad*>(leaving_[i].function.get());
    if (leaf != nullptr && leaf->variable._version() != versions_[i])
      fail(ErrorCode::kBadInput, "recompute: a parameter of shape ", leaf->variable.sizes(),
           " was changed between forward and backward (by an optimizer step?), so the second run would not repeat the first");
  }
}

Run RecomputeNode::run_again(const Tensors& own_inputs) const {
  const RecomputingScope recomputing;
  const ForwardStateScope same_state(state_);
  const at::AutoGradMode record(true);
  Run run(function_, own_inputs);
  if (run.outputs.size() != num_function_outputs)
    fail(ErrorCode::kFailed, "recompute: the function gave ", num_function_outputs, " outputs in forward and ", run.outputs.size(),
         " in backward; it must do the same both times");
  for (const size_t output : differentiable)
    if (!run.roots[output].is_valid())
      fail(ErrorCode::kFailed, "recompute: output ", output,
           " needed a gradient in forward and needs none in backward; the function must do "
           "the same both times");
  return run;
}

/// Ends the run's graph at the edges that leave it. Returns the ends, one for each of these edges.
edge_list RecomputeNode::cut(Run& run) const {
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

variable_list RecomputeNode::apply(variable_list&& gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (at::GradMode::is_enabled()) fail(ErrorCode::kBadInput, "recompute: no second derivatives; call backward without create_graph");
  if (!function_)
    fail(ErrorCode::kBadInput, "recompute: backward a second time through a graph that was freed; call the first with retain_graph");
  variable_list result(next_edges_.size());
  if (std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) { return gradient.defined(); })) return result;
  check_versions();
  Tensors inputs;
  for (const torch::autograd::SavedVariable& saved : saved_) inputs.push_back(saved.unpack());

  const BufferScope keep_buffers(module_);
  auto end = c10::make_intrusive<End>();
  Run run = run_again(cut_off(inputs, end));
  const edge_list ends = cut(run);
  edge_list roots, wanted;
  variable_list root_gradients;
  std::vector<size_t> places;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(run.roots[differentiable[i]]);
    root_gradients.push_back(std::move(gradients[i]));
  }
  run.outputs.clear();  // What the operators saved goes as soon as they are done.
  run.roots.clear();
  for (size_t i = 0; i < next_edges_.size(); ++i) {
    if (!task_should_compute_output(i)) continue;
    places.push_back(i);
    wanted.push_back(i < num_inputs_ ? Edge(end, static_cast<uint32_t>(i)) : ends[i - num_inputs_]);
  }
  if (wanted.empty()) return result;
  variable_list found = torch::autograd::Engine::get_default_engine().execute(roots, root_gradients, /*keep_graph=*/false,
                                                                              /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(found[i]);
  return result;
}

/// The edges that lead out of a run's graph: to parameters, and to what was there before its first node.
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

bool is_recomputing() { return num_runs_under_way > 0; }

Tensors recompute(const Function& function, const Tensors& inputs, torch::nn::Module* module) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  ForwardState state(inputs);
  state.autocast.forget_casts();
  auto end = c10::make_intrusive<End>();
  const uint64_t first_node = at::sequence_number::peek();
  Run run(function, cut_off(inputs, end));
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

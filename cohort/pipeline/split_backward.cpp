// Backward in two parts (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3: B and W), by means of LibTorch's own engine.
//
// A node of the graph is on the path when an input can be reached from it. A junction is a node on the path with an edge that leaves it
// towards a weight: the gradient of a matrix product, whose one edge leads to its input and the other to its weight.
// towards a weight: the gradient of a matrix product, whose one edge leads to its input and the other to its weight.
//
// Steps, input part: (1) walk the graph: which nodes are on the path, which weights each junction leads to; (2) let the engine compute the
// gradients of the inputs and capture the gradients that arrive at junctions. An operator computes only the requested gradients, so the
// products for weights are left out. (3) Free what the operators on the path had saved, except junctions, and disconnect these from the
// path. Weight part: (4) let the engine go from the captured gradients to the weights, in one backward.
//
// An output from which no input can be reached is its own junction. A weight's gradient is accumulated at once or not at all: in pieces,
// sums would round differently and hooks run twice. So junctions that share a weight (tied, used twice, the steps of an LSTM) are early:
// their weights' gradients are computed in the input part, where the engine sums them as usual. So are those of operators that may not run
// twice: any that are not LibTorch's own. How often a weight is used may depend on the size of the micro-batch (a norm over groups of
// samples), so its gradient may be early in one and late in the previous one; the early one then waits for its weight part, and
// micro-batches are added in order.
//
// Cost: the products of one backward(), a walk of the graph, O(nodes), and two engine calls instead of one. What a junction saved and the
// gradient at it are kept until the weight part. Gradients are bitwise those of backward(), as far as LibTorch's operators give the same
// bits when asked for some of their gradients as for all (those of Cohort's models do, as tests check).
//
// Where we differ from torch.distributed.pipelining's stage_backward_input and _weight: nothing is computed twice, a weight gets one sum,
// outputs need not depend on inputs, hooks run, and saved activations are freed early.

#include "cohort/pipeline/split_backward.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;
using NodePointer = c10::intrusive_ptr<Node>;

bool is_leaf(Node* node) { return dynamic_cast<AccumulateGrad*>(node) != nullptr; }

/// A node where gradients of weights branch off, or (node null) the outputs from which no input can be reached.
struct Junction {
  NodePointer node;
  edge_list entries;  ///< Where gradients enter it.
  variable_list gradients;
  edge_list weights;              ///< Weights reached by its edges off the path, each once.
  std::vector<NodePointer> side;  ///< Nodes between it and its weights.
  bool early = false;
};

/// The graph behind the roots in topological order: a node follows all that it leads to.
class Graph {
 public:
  Graph(const edge_list& roots, const std::unordered_set<Node*>& inputs) {
    for (const Edge& root : roots) visit(root.function);
    for (const NodePointer& node : order_) {
      bool on_way = inputs.count(node.get()) > 0;
      for (const Edge& edge : node->next_edges()) on_way = on_way || (edge.is_valid() && is_on_way(edge.function.get()));
      if (on_way) on_way_.insert(node.get());
    }
  }
  const std::vector<NodePointer>& order() const { return order_; }
  bool is_on_way(Node* node) const { return on_way_.count(node) > 0; }

  /// Adds to a junction what `edges` reach off the path.
  void add_side(const edge_list& edges, Junction& junction) const {
    std::unordered_set<Node*> seen;
    std::vector<Edge> open = edges;
    while (!open.empty()) {
      const Edge edge = std::move(open.back());
      open.pop_back();
      if (!edge.is_valid() || is_on_way(edge.function.get()) || !seen.insert(edge.function.get()).second) continue;
      if (is_leaf(edge.function.get())) {
        junction.weights.push_back(edge);
        continue;
      }
      junction.side.push_back(edge.function);
      open.insert(open.end(), edge.function->next_edges().begin(), edge.function->next_edges().end());
    }
  }

 private:
  /// Depth first, without recursion, since graphs of unrolled loops are deep.
  void visit(const NodePointer& root) {
    if (!seen_.insert(root.get()).second) return;
    std::vector<std::pair<NodePointer, size_t>> path{{root, 0}};
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next == node->next_edges().size()) {
        order_.push_back(std::move(node));
        path.pop_back();
        continue;
      }
      const Edge& edge = node->next_edges()[next++];
      if (edge.is_valid() && seen_.insert(edge.function.get()).second) path.emplace_back(edge.function, 0);
    }
  }

  std::vector<NodePointer> order_;
  std::unordered_set<Node*> seen_, on_way_;
};

/// Junctions with at least one weight.
std::vector<Junction> find_junctions(const Graph& graph, const edge_list& roots, const variable_list& gradients) {
  std::vector<Junction> junctions(1);
  for (size_t i = 0; i < roots.size(); ++i) {
    if (graph.is_on_way(roots[i].function.get())) continue;
    junctions[0].entries.push_back(roots[i]);
    junctions[0].gradients.push_back(gradients[i]);
  }
  graph.add_side(junctions[0].entries, junctions[0]);
  for (const NodePointer& node : graph.order()) {
    if (!graph.is_on_way(node.get())) continue;
    Junction junction;
    graph.add_side(node->next_edges(), junction);
    if (junction.weights.empty()) continue;
    junction.node = node;
    junction.early = !node->is_traceable();  // Only LibTorch's own operators are.
    for (uint32_t i = 0; i < node->num_inputs(); ++i) junction.entries.emplace_back(node, i);
    junctions.push_back(std::move(junction));
  }
  return junctions;
}

/// Marks junctions that share a weight as early.
void find_early(std::vector<Junction>& junctions) {
  std::unordered_map<Node*, int> num_users;
  for (const Junction& junction : junctions)
    for (const Edge& weight : junction.weights) ++num_users[weight.function.get()];
  for (Junction& junction : junctions)
    junction.early = junction.early || std::any_of(junction.weights.begin(), junction.weights.end(),
                                                   [&](const Edge& weight) { return num_users[weight.function.get()] > 1; });
}

/// A node that passes gradients to weights whose tensor hooks have already run (where the engine captured them), so that hooks after the
/// accumulation run inside a backward. Owns the gradients: `.grad` takes those that nobody else holds without a copy.
struct Deliver : Node {
  Deliver(const edge_list& weights, variable_list gradients)
      : Node(std::numeric_limits<uint64_t>::max()), weights_(weights), gradients_(std::move(gradients)) {}
  variable_list apply(variable_list&&) override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (!gradients_[i].defined()) continue;
      variable_list one;
      one.push_back(std::move(gradients_[i]));
      (*weights_[i].function)(std::move(one));
    }
    return {};
  }
  std::string name() const override { return "cohort::Deliver"; }

 private:
  edge_list weights_;
  variable_list gradients_;
};

void deliver(const edge_list& weights, variable_list gradients) {
  if (weights.empty()) return;
  const auto node = c10::make_intrusive<Deliver>(weights, std::move(gradients));
  const at::Tensor start = at::zeros({1}, at::kFloat);
  node->add_input_metadata(start);
  Engine::get_default_engine().execute({Edge(node, 0)}, {start}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

/// Weights and their gradients.
struct Delivery {
  edge_list weights;
  variable_list gradients;
};

/// Computes gradients of `inputs`, junctions and early weights in one pass of the engine, and delivers the early ones that are not
/// `is_owed`. Returns the gradients of the inputs and the owed ones.
template <typename IsOwed>
std::pair<variable_list, Delivery> run_input_part(const edge_list& roots, const variable_list& gradients, const edge_list& inputs,
                                                  std::vector<Junction>& junctions, const IsOwed& is_owed) {
  edge_list wanted = inputs, early;
  std::unordered_set<Node*> taken;
  for (const Junction& junction : junctions) {
    if (junction.node && !junction.early) wanted.insert(wanted.end(), junction.entries.begin(), junction.entries.end());
    for (const Edge& weight : junction.weights)
      if (junction.early && taken.insert(weight.function.get()).second) early.push_back(weight);
  }
  wanted.insert(wanted.end(), early.begin(), early.end());
  variable_list found = Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/true, /*create_graph=*/false,
                                                             /*accumulate_grad=*/false, wanted);
  size_t next = inputs.size();
  for (Junction& junction : junctions) {
    if (junction.early || !junction.node) continue;
    for (size_t i = 0; i < junction.entries.size(); ++i) junction.gradients.push_back(std::move(found[next++]));
  }
  Delivery now, later;
  for (const Edge& weight : early) {
    Delivery& when = is_owed(weight.function.get()) ? later : now;
    when.weights.push_back(weight);
    when.gradients.push_back(std::move(found[next++]));
  }
  deliver(now.weights, std::move(now.gradients));
  found.resize(inputs.size());
  return {std::move(found), std::move(later)};
}

/// Frees what no junction needs, and disconnects junctions from the path.
void free_way(const Graph& graph, const std::vector<Junction>& junctions) {
  std::unordered_set<Node*> needed;
  for (const Junction& junction : junctions) {
    if (junction.early) continue;
    needed.insert(junction.node.get());
    for (const NodePointer& node : junction.side) needed.insert(node.get());
  }
  for (const NodePointer& node : graph.order())
    if (needed.count(node.get()) == 0) node->release_variables();
  for (const Junction& junction : junctions) {
    if (junction.early || !junction.node) continue;
    for (Edge& edge : junction.node->next_edges())
      if (edge.is_valid() && graph.is_on_way(edge.function.get())) edge = Edge();
  }
}

/// From all junctions to their weights in one pass of the engine: disconnected, none leads to another.
void run_weight_part(const std::vector<Junction>& junctions) {
  edge_list roots, weights;
  variable_list gradients;
  for (const Junction& junction : junctions) {
    for (size_t i = 0; i < junction.entries.size(); ++i) {
      if (!junction.gradients[i].defined()) continue;
      roots.push_back(junction.entries[i]);
      gradients.push_back(junction.gradients[i]);
    }
    weights.insert(weights.end(), junction.weights.begin(), junction.weights.end());
  }
  if (roots.empty()) return;
  Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true, weights);
}

}  // namespace

struct SplitBackward::State {
  std::vector<Junction> junctions;  ///< Not early.
  Delivery held;                    ///< Early weights that wait for their micro-batch.

  bool owes(const Node* weight) const {
    const auto has = [weight](const edge_list& edges) {
      return std::any_of(edges.begin(), edges.end(), [weight](const Edge& edge) { return edge.function.get() == weight; });
    };
    return has(held.weights) || std::any_of(junctions.begin(), junctions.end(), [&](const Junction& one) { return has(one.weights); });
  }
};

SplitBackward::SplitBackward() = default;
SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

std::vector<at::Tensor> SplitBackward::input_part(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& output_gradients,
                                                  const std::vector<at::Tensor>& inputs, const std::vector<const SplitBackward*>& before) {
  if (state_) fail(ErrorCode::kBadInput, "SplitBackward: input_part() again before weight_part() of the micro-batch before");
  if (outputs.size() != output_gradients.size())
    fail(ErrorCode::kBadInput, "SplitBackward: ", outputs.size(), " outputs but ", output_gradients.size(), " gradients of outputs");
  edge_list roots, input_edges;
  variable_list gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || !output_gradients[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    gradients.push_back(output_gradients[i]);
  }
  std::vector<size_t> places;
  std::unordered_set<Node*> input_nodes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    if (!inputs[i].is_leaf())
      fail(ErrorCode::kBadInput, "SplitBackward: input ", i, " of ", inputs.size(), ", of shape ", inputs[i].sizes(),
           ", was computed from others; a stage's inputs are leaves (detach() it, then requires_grad_())");
    places.push_back(i);
    input_edges.push_back(torch::autograd::impl::gradient_edge(inputs[i]));
    input_nodes.insert(input_edges.back().function.get());
  }
  std::vector<at::Tensor> result(inputs.size());
  if (roots.empty()) return result;

  const Graph graph(roots, input_nodes);
  std::vector<Junction> junctions = find_junctions(graph, roots, gradients);
  find_early(junctions);
  const bool needs_pass = std::any_of(roots.begin(), roots.end(), [&](const Edge& root) { return graph.is_on_way(root.function.get()); });
  Delivery held;
  if (needs_pass) {
    auto [found, later] = run_input_part(roots, gradients, input_edges, junctions, [&](const Node* weight) {
      return std::any_of(before.begin(), before.end(), [&](const SplitBackward* one) { return one->state_ && one->state_->owes(weight); });
    });
    held = std::move(later);
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(found[i]);
    free_way(graph, junctions);
  }
  std::erase_if(junctions, [](const Junction& junction) { return junction.early || junction.weights.empty(); });
  for (Junction& junction : junctions) junction.side.clear();
  if (!junctions.empty() || !held.weights.empty()) state_ = std::make_unique<State>(State{std::move(junctions), std::move(held)});
  return result;
}

void SplitBackward::weight_part() {
  if (!state_) return;
  const std::unique_ptr<State> state = std::move(state_);  // Gone even where a hook throws.
  run_weight_part(state->junctions);
  deliver(state->held.weights, std::move(state->held.gradients));
}

}  // namespace cohort

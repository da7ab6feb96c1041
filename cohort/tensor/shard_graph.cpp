// Dividing a model between the ranks of a tensor-parallel group.
//
// Steps: (1) plan: in the graph's order, each layer's rule (shard_rules.h, by kind) gets the placement of its inputs and returns which of
// its parameters are divided, the placement of its output, and whether it can take its inputs as they are. Where it cannot, the value is
// marked "gathered by its producer", once for all of its readers, and planning starts again; so does it where layers that share a tensor
// disagree, which are then kept whole. Each restart marks at least one value or layer more, so it ends. (2) Apply: each divided parameter
// and buffer becomes this rank's slice of its values (the same tensor object, so that names, ties and modules stay), functions are
// replaced, and a gathered value's producer joins it. Planning touches no values and is the same on all ranks; nothing is exchanged.
// Cost: planning is (layers x restarts) rule calls; a divided parameter is copied once.
// Source: the divisions are in shard_rules.cpp; where we differ: they are chosen by the pass instead of written into the model.

#include "cohort/tensor/shard_graph.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"
#include "cohort/tensor/sharded_block.h"

namespace cohort {
namespace {

using shard_rules::Division;
using shard_rules::LayerPlan;
using shard_rules::LayerQuery;
using shard_rules::Placement;

/// A parameter or buffer of the graph and the layers that use it.
struct Owned {
  struct Use {
    size_t layer;
    std::string name;  ///< In the layer's module.
  };
  at::Tensor tensor;
  std::vector<Use> uses;
};

std::vector<Owned> all_tensors(const LayerGraph& graph) {
  std::vector<Owned> result;
  std::map<const void*, size_t> seen;
  const auto add = [&](const at::Tensor& tensor, size_t layer, const std::string& name) {
    const auto [entry, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), result.size());
    if (is_new) result.push_back({tensor, {}});
    result[entry->second].uses.push_back({layer, name});
  };
  for (size_t i = 0; i < graph.layers().size(); ++i) {
    const auto& module = graph.layers()[i].module;
    if (!module) continue;
    for (const auto& parameter : module->named_parameters()) add(parameter.value(), i, parameter.key());
    for (const auto& buffer : module->named_buffers()) add(buffer.value(), i, buffer.key());
  }
  return result;
}

class Planner {
 public:
  Planner(const LayerGraph& graph, int num_ranks, const Group& group, bool divide_positions)
      : layers_(graph.layers()),
        num_ranks_(num_ranks),
        group_(group),
        divide_positions_(divide_positions),
        tensors_(all_tensors(graph)),
        gathered_(layers_.size()),
        kept_whole_(layers_.size()),
        shares_weight_(layers_.size()) {
    for (const Owned& owned : tensors_) {
      for (const Owned::Use& use : owned.uses) {
        if (use.layer != owned.uses.front().layer) shares_weight_[use.layer] = shares_weight_[owned.uses.front().layer] = true;
      }
    }
  }

  std::vector<LayerPlan> plan() {
    while (!plan_layers() || !shared_tensors_agree()) plans_.clear();
    return plans_;
  }
  /// Whether the producer joins its output after plan().
  bool is_gathered(size_t layer) const { return gathered_[layer]; }
  bool takes_positions(size_t layer) const {
    const std::vector<int>& inputs = layers_[layer].inputs;
    return std::any_of(inputs.begin(), inputs.end(), [&](int input) { return input_placement(input) == Placement::kPositions; });
  }
  const std::vector<Owned>& tensors() const { return tensors_; }

  /// The dimension in which a tensor is divided where a layer uses it, or -1.
  static int divided_dim_of(const std::vector<LayerPlan>& plans, const Owned::Use& use) {
    for (const Division& division : plans[use.layer].divisions) {
      if (division.name == use.name) return division.dim;
    }
    return -1;
  }

 private:
  Placement input_placement(int input) const {
    if (input == LayerGraph::kInput) return Placement::kWhole;
    const auto index = static_cast<size_t>(input);
    return gathered_[index] ? Placement::kWhole : plans_[index].output;
  }

  LayerPlan apply_rule(size_t index, const std::vector<Placement>& inputs) const {
    const LayerGraph::Layer& layer = layers_[index];
    if (!kept_whole_[index].empty()) return shard_rules::whole(kept_whole_[index]);
    const shard_rules::Rule rule = shard_rules::rule_of(layer.kind);
    if (rule == nullptr) return shard_rules::whole("there is no rule for layers of kind '" + layer.kind + "'");
    return rule({index, &layer, inputs, index + 1 == layers_.size(), shares_weight_[index], divide_positions_, num_ranks_, group_});
  }

  /// False where a value must newly be gathered.
  bool plan_layers() {
    for (size_t i = 0; i < layers_.size(); ++i) {
      std::vector<Placement> inputs;
      for (const int input : layers_[i].inputs) inputs.push_back(input_placement(input));
      plans_.push_back(apply_rule(i, inputs));
      const LayerPlan& plan = plans_.back();
      bool complete = true;
      for (size_t k = 0; k < inputs.size() && plan.needs_whole_inputs; ++k) {
        if (inputs[k] == Placement::kWhole) continue;
        gathered_[static_cast<size_t>(layers_[i].inputs[k])] = true;
        complete = false;
      }
      if (!complete) return false;
      if (i + 1 == layers_.size() && plan.output != Placement::kWhole && !plan.output_may_stay_divided) gathered_[i] = true;
    }
    return true;
  }

  /// False where layers that share a tensor would divide it differently; they stay whole then.
  bool shared_tensors_agree() {
    bool agree = true;
    for (const Owned& owned : tensors_) {
      const int dim = divided_dim_of(plans_, owned.uses.front());
      const auto differs =
          std::find_if(owned.uses.begin(), owned.uses.end(), [&](const Owned::Use& use) { return divided_dim_of(plans_, use) != dim; });
      if (differs == owned.uses.end()) continue;
      agree = false;
      const Owned::Use& whole_one = dim == -1 ? owned.uses.front() : *differs;
      for (const Owned::Use& use : owned.uses) {
        if (divided_dim_of(plans_, use) == -1) continue;
        kept_whole_[use.layer] =
            concat("it shares ", use.name, " with layer '", layers_[whole_one.layer].name, "', which does not divide it alike");
      }
    }
    return agree;
  }

  const std::vector<LayerGraph::Layer>& layers_;
  int num_ranks_;
  Group group_;
  bool divide_positions_;
  std::vector<Owned> tensors_;
  std::vector<bool> gathered_;
  std::vector<std::string> kept_whole_;  ///< The reason, or "".
  std::vector<bool> shares_weight_;
  std::vector<LayerPlan> plans_;
};

/// Gives a tensor object this rank's values.
void keep_my_part(at::Tensor tensor, const ParameterShard& shard) {
  const at::NoGradGuard no_grad;
  tensor.mutable_grad().reset();
  tensor.set_data(shard_values(tensor, shard));
}

/// Divides parameters and buffers as planned, and adds them to `shards` under all their names.
void divide_tensors(const LayerGraph& graph, const Planner& planner, const std::vector<LayerPlan>& plans, const Group& group,
                    std::map<std::string, ParameterShard>& shards) {
  for (const Owned& owned : planner.tensors()) {
    const int dim = Planner::divided_dim_of(plans, owned.uses.front());
    if (dim < 0) continue;
    const auto full_name = [&](const Owned::Use& use) { return graph.layers()[use.layer].name + "." + use.name; };
    const ParameterShard shard = even_shard(owned.tensor.sizes().vec(), dim, group.size(), group.rank(), full_name(owned.uses.front()));
    keep_my_part(owned.tensor, shard);
    for (const Owned::Use& use : owned.uses) shards[full_name(use)] = shard;
  }
}

/// Why positions stay whole, or "": models with positions state their number in the embedding.
std::string why_positions_stay_whole(const LayerGraph& graph, int num_ranks) {
  int64_t positions = 0;
  for (const LayerGraph::Layer& layer : graph.layers()) positions = std::max(positions, shard_rules::num_positions(layer));
  if (positions == 0) return "no embedding of this model says how many positions there are";
  if (positions % num_ranks != 0) return concat(positions, " positions do not divide by ", num_ranks, " ranks");
  return "";
}

std::string sequence_reason_of(const LayerGraph& graph, int num_ranks, const TensorParallelOptions& options) {
  return options.sequence_parallel && num_ranks > 1 ? why_positions_stay_whole(graph, num_ranks) : "";
}

/// Whether the model's output stays divided by classes.
bool logits_stay_divided(const Planner& planner, const std::vector<LayerPlan>& plans) {
  return !plans.empty() && plans.back().output != Placement::kWhole && !planner.is_gathered(plans.size() - 1);
}

LayerPlacement placement_of(const LayerGraph& graph, const Planner& planner, const std::vector<LayerPlan>& plans, size_t layer) {
  return {graph.layers()[layer].name, graph.layers()[layer].kind, plans[layer].placement, plans[layer].reason,
          planner.takes_positions(layer)};
}

}  // namespace

ShardPlan plan_shards(const LayerGraph& graph, int num_ranks, const TensorParallelOptions& options) {
  ShardPlan result;
  result.sequence_reason = sequence_reason_of(graph, num_ranks, options);
  result.divides_positions = options.sequence_parallel && num_ranks > 1 && result.sequence_reason.empty();
  Planner planner(graph, num_ranks, Group(), result.divides_positions);
  const std::vector<LayerPlan> plans = planner.plan();
  for (size_t i = 0; i < plans.size(); ++i) result.placements.push_back(placement_of(graph, planner, plans, i));
  result.logits_divided = logits_stay_divided(planner, plans);
  for (const Owned& owned : planner.tensors()) {
    const size_t layer = owned.uses.front().layer;
    result.num_parameters += owned.tensor.numel();
    const bool in_block = plans[layer].placement == "heads" && is_divided_in_block(owned.uses.front().name);
    if (in_block || Planner::divided_dim_of(plans, owned.uses.front()) >= 0) result.num_divided += owned.tensor.numel();
  }
  return result;
}

ShardedModel shard_graph(LayerGraph& graph, const Group& group, const TensorParallelOptions& options) {
  ShardedModel result;
  result.sequence_reason = sequence_reason_of(graph, group.size(), options);
  const bool divide_positions = options.sequence_parallel && group.size() > 1 && result.sequence_reason.empty();
  if (group.size() == 1) {
    for (const LayerGraph::Layer& layer : graph.layers()) result.placements.push_back({layer.name, layer.kind, "whole", "one rank"});
    return result;
  }
  Planner planner(graph, group.size(), group, divide_positions);
  const std::vector<LayerPlan> plans = planner.plan();
  divide_tensors(graph, planner, plans, group, result.shards);
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayerPlan& plan = plans[i];
    if (plan.apply) plan.apply(graph, result.shards);
    const LayerGraph::Layer& layer = graph.layers()[i];
    result.placements.push_back(placement_of(graph, planner, plans, i));
    if (!planner.is_gathered(i) || plan.output == Placement::kWhole) continue;
    const int64_t dim = shard_rules::divided_dim(plan.output);
    graph.replace_layer(i, nullptr, [inner = layer.function, dim, group](const LayerGraph::Inputs& in) {
      return gather_from_ranks(inner(in), dim, group);
    });
  }
  result.logits_divided = logits_stay_divided(planner, plans);
  return result;
}

}  // namespace cohort

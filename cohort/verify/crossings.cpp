// A value v is made in stage s and read by layers of s and of other stages. In a pipeline each other stage gets one copy of v, contiguous
// in memory, and hands back one gradient: the sum over its readers. The stage that made v adds those up, first of stages that its own
// worker runs (the last one first, as their backwards come), then of other workers' (the first one first), and starts its own backward from
// that sum, to which its own readers add. Readers add in the order of backward: the last layer first.
//
// Here each reader gets a copy of its own from one operation whose backward adds in that order. Sums are those of LibTorch: in the type of
// the gradient, rounded at each addition.
//
// A weight that several stages of one worker use is one tensor there, and each backward adds to it as it comes. What comes when is the
// schedule's to say, a table (schedule/); who carries it out is not asked.
#include "cohort/verify/crossings.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/stage_graph.h"
#include "cohort/plan/cost/stages.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One input of one layer.
struct Reader {
  size_t layer, input;
};

/// Copies of one value by place in a list, and how their gradients are added up: group after group, each from its last place down.
struct Crossing {
  std::vector<Reader> readers;
  std::vector<bool> is_sent;                 ///< One a reader: it is in another stage.
  std::vector<std::vector<int64_t>> groups;  ///< Places.
  std::vector<at::Tensor> copies;            ///< Of this forward.
};

constexpr int64_t kEndOfGroup = -1;

void add_to(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined()) sum = sum.defined() ? sum + term : term;
}

struct ReadInStages : torch::autograd::Function<ReadInStages> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& value, const std::vector<int64_t>& order,
                               const std::vector<int64_t>& is_sent) {
    ctx->saved_data["order"] = order;
    ctx->saved_data["is_sent"] = is_sent;
    variable_list copies;
    for (const int64_t sent : is_sent) copies.push_back(sent ? value.clone(at::MemoryFormat::Contiguous) : value.clone());
    return copies;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const std::vector<int64_t> is_sent = ctx->saved_data["is_sent"].toIntVector();
    at::Tensor total, of_group;
    for (const int64_t place : ctx->saved_data["order"].toIntVector()) {
      if (place == kEndOfGroup) {
        add_to(total, of_group);
        of_group = at::Tensor();
        continue;
      }
      const at::Tensor& gradient = gradients[static_cast<size_t>(place)];
      add_to(of_group, gradient.defined() && is_sent[static_cast<size_t>(place)] ? gradient.contiguous() : gradient);
    }
    return {total, at::Tensor(), at::Tensor()};
  }
};

std::vector<Reader> readers_of(const LayerGraph& model, size_t producer) {
  std::vector<Reader> readers;
  for (size_t layer = producer + 1; layer < model.layers().size(); ++layer)
    for (size_t input = 0; input < model.layers()[layer].inputs.size(); ++input)
      if (model.layers()[layer].inputs[input] == static_cast<int>(producer)) readers.push_back({layer, input});
  return readers;
}

Crossing crossing_of(std::vector<Reader> readers, const std::vector<LayerStage>& stages, const LayerStage& made) {
  Crossing crossing;
  crossing.readers = std::move(readers);
  std::map<int, std::vector<int64_t>> places_of_stage;
  std::map<int, int> worker_of_stage;
  for (size_t place = crossing.readers.size(); place-- > 0;) {
    const LayerStage& reader = stages.at(crossing.readers[place].layer);
    places_of_stage[reader.stage].push_back(static_cast<int64_t>(place));
    worker_of_stage[reader.stage] = reader.worker;
  }
  for (const Reader& reader : crossing.readers) crossing.is_sent.push_back(stages.at(reader.layer).stage != made.stage);
  for (auto stage = places_of_stage.rbegin(); stage != places_of_stage.rend(); ++stage)
    if (stage->first != made.stage && worker_of_stage[stage->first] == made.worker) crossing.groups.push_back(stage->second);
  for (const auto& [stage, places] : places_of_stage)
    if (stage != made.stage && worker_of_stage[stage] != made.worker) crossing.groups.push_back(places);
  for (const int64_t place : places_of_stage[made.stage]) crossing.groups.push_back({place});
  return crossing;
}

void wrap(LayerGraph& model, size_t producer, const std::shared_ptr<Crossing>& crossing) {
  std::vector<int64_t> order, is_sent(crossing->is_sent.begin(), crossing->is_sent.end());
  for (const std::vector<int64_t>& group : crossing->groups) {
    order.insert(order.end(), group.begin(), group.end());
    order.push_back(kEndOfGroup);
  }
  model.replace_layer(producer, nullptr, [=, inner = model.layers()[producer].function](const LayerGraph::Inputs& in) {
    const at::Tensor value = inner(in);
    crossing->copies = ReadInStages::apply(value, order, is_sent);
    return value;
  });
  for (size_t place = 0; place < crossing->readers.size(); ++place) {
    const Reader& reader = crossing->readers[place];
    model.replace_layer(reader.layer, nullptr,
                        [=, inner = model.layers()[reader.layer].function, input = reader.input](LayerGraph::Inputs in) {
                          in.at(input) = std::exchange(crossing->copies.at(place), at::Tensor());
                          return inner(in);
                        });
  }
}

/// With another stage.
bool shares_a_weight(const LayerGraph& model, const StageCut& cut, size_t layer) {
  const std::string prefix = model.layers()[layer].name + ".";
  return std::any_of(cut.tied.begin(), cut.tied.end(),
                     [&](const TiedWeight& weight) { return weight.name.starts_with(prefix) || weight.user_name.starts_with(prefix); });
}

}  // namespace

void cross_stages(LayerGraph& model, const std::vector<LayerStage>& stages) {
  if (stages.empty()) return;
  if (stages.size() != model.layers().size())
    fail(ErrorCode::kFailed, "verify: stages of ", stages.size(), " layers, and the model has ", model.layers().size());
  for (size_t producer = 0; producer < stages.size(); ++producer) {
    const auto crossing = std::make_shared<Crossing>(crossing_of(readers_of(model, producer), stages, stages[producer]));
    if (std::find(crossing->is_sent.begin(), crossing->is_sent.end(), true) != crossing->is_sent.end()) wrap(model, producer, crossing);
  }
}

BackwardOrder backward_order(const LayerGraph& model, const Layout& layout, const std::vector<LayerStage>& stages) {
  std::vector<int> stage_of;
  for (const LayerStage& layer : stages) stage_of.push_back(layer.stage);
  const StageCut cut = cut_graph(model, stage_of);
  std::vector<std::vector<int>> ranks_of_stage(static_cast<size_t>(cut.num_stages()));
  for (const LayerStage& layer : stages) ranks_of_stage[static_cast<size_t>(layer.stage)] = {layer.worker};
  // What is recomputed may not run twice, so a stage that hands a gradient on makes all of its gradients with that one.
  // Where only some layers recompute, it is those with a shared weight that count: the order of the others' sums is the same either way.
  const std::vector<bool> recompute = recomputed_layers(layout.recompute, model.layers().size());
  std::set<int> runs_twice;
  for (size_t layer = 0; layer < recompute.size(); ++layer)
    if (recompute[layer] && (layout.recompute == "all" || shares_a_weight(model, cut, layer))) runs_twice.insert(cut.stage_of[layer]);
  std::vector<bool> at_once(static_cast<size_t>(cut.num_stages()), false);
  for (const StageEdge& edge : cut.edges)
    if (runs_twice.contains(edge.to) && !edge.values.empty()) at_once[static_cast<size_t>(edge.to)] = true;
  return [at_once, scheduler = Scheduler(layout, cut.stage_edges(), ranks_of_stage)](int num_micro_batches) {
    std::vector<std::pair<int, int>> order;
    for (const std::vector<Action>& actions : scheduler(num_micro_batches).actions)
      for (const Action& action : actions) {
        const ActionKind part = at_once[static_cast<size_t>(action.stage)] ? ActionKind::kBackwardInput : ActionKind::kBackwardWeight;
        if (action.kind == ActionKind::kBackward || action.kind == part) order.emplace_back(action.stage, action.micro_batch);
      }
    // The table is the ranks' own, so a gradient that it leaves out would be missed by both.
    const size_t num_gradients = at_once.size() * static_cast<size_t>(num_micro_batches);
    if (order.size() != num_gradients || std::set(order.begin(), order.end()).size() != num_gradients)
      fail(ErrorCode::kFailed, "verify: the schedule adds ", order.size(), " gradients of ", at_once.size(), " stages and ",
           num_micro_batches, " micro-batches, and each is to be added once");
    return order;
  };
}

}  // namespace cohort

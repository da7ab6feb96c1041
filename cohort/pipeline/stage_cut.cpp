#include "cohort/pipeline/stage_cut.h"

#include <algorithm>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/schedule/scheduler.h"

namespace cohort {
namespace {

void find_tied_weights(const LayerGraph& graph, StageCut& cut) {
  struct Place {
    std::string name;
    int stage;
  };
  std::map<const void*, Place> first;
  std::set<std::pair<const void*, int>> known;  // Within a stage autograd accumulates, so one use per stage suffices.
  for (size_t layer = 0; layer < graph.layers().size(); ++layer) {
    if (!graph.layers()[layer].module) continue;
    const int stage = cut.stage_of[layer];
    for (const auto& parameter : graph.layers()[layer].module->named_parameters()) {
      const void* const identity = parameter.value().unsafeGetTensorImpl();
      const std::string name = graph.layers()[layer].name + "." + parameter.key();
      const auto [owner, is_new] = first.emplace(identity, Place{name, stage});
      if (is_new || owner->second.stage == stage || !known.insert({identity, stage}).second) continue;
      cut.tied.push_back({owner->second.name, owner->second.stage, name, stage});
    }
  }
  for (const TiedWeight& weight : cut.tied)
    if (weight.owner > weight.user)
      fail(ErrorCode::kBadInput, "stages: the shared weight ", weight.name, " of stage ", weight.owner, " is used by the earlier stage ",
           weight.user, "; put the two into one stage");
}

}  // namespace

bool StageCut::reads_input(const LayerGraph& graph, int stage) const {
  const std::vector<int>& own = layers[static_cast<size_t>(stage)];
  return std::any_of(own.begin(), own.end(), [&](int layer) {
    const std::vector<int>& inputs = graph.layers()[static_cast<size_t>(layer)].inputs;
    return std::find(inputs.begin(), inputs.end(), LayerGraph::kInput) != inputs.end();
  });
}

StageCut cut_graph(const LayerGraph& graph, std::vector<int> stage_of) {
  if (stage_of.size() != graph.layers().size())
    fail(ErrorCode::kBadInput, "stages for ", stage_of.size(), " layers, and the model has ", graph.layers().size());
  StageCut cut;
  cut.stage_of = std::move(stage_of);
  find_tied_weights(graph, cut);
  std::vector<std::pair<int, int>> edges, tied;
  for (size_t layer = 0; layer < graph.layers().size(); ++layer)
    for (const int input : graph.layers()[layer].inputs) edges.emplace_back(input == LayerGraph::kInput ? -1 : input, layer);
  for (const TiedWeight& weight : cut.tied) tied.emplace_back(weight.owner, weight.user);
  static_cast<StageGraph&>(cut) =
      cut_layers(edges, tied, std::move(cut.stage_of), [&](int layer) { return graph.layers()[static_cast<size_t>(layer)].name; });
  return cut;
}

StageCut cut_at(const LayerGraph& graph, const std::vector<int>& first_layers) {
  const auto num_layers = static_cast<int>(graph.layers().size());
  int next = 0;  // The smallest possible begin of the next stage; the first begins at 0.
  for (const int first : first_layers) {
    if (first < next || first >= num_layers || (next == 0 && first != 0))
      fail(ErrorCode::kBadInput, "stages begin with layer 0 and rise below ", num_layers, ", the number of layers; here one begins with ",
           first);
    next = first + 1;
  }
  return cut_graph(graph, stage_of_layers(first_layers, graph.layers().size()));
}

StageCut cut_by_layout(const LayerGraph& graph, const Layout& layout) {
  std::map<std::string, int> index;
  std::vector<std::string> names;
  for (size_t layer = 0; layer < graph.layers().size(); ++layer) {
    index[graph.layers()[layer].name] = static_cast<int>(layer);
    names.push_back(graph.layers()[layer].name);
  }
  std::vector<int> stage_of(names.size(), -1);
  for (size_t stage = 0; stage < layout.stages.size(); ++stage)
    for (const std::string& name : layout.stages[stage].layers) {
      const auto found = index.find(name);
      if (found == index.end())
        fail(ErrorCode::kBadInput, name_settings("--layout: stage "), stage, " names layer '", name, "', which is not in the model",
             did_you_mean(name, names));
      int& place = stage_of[static_cast<size_t>(found->second)];
      if (place >= 0)
        fail(ErrorCode::kBadInput, name_settings("--layout: layer '"), name, "' is in stage ", place, " and in stage ", stage);
      place = static_cast<int>(stage);
    }
  for (size_t layer = 0; layer < stage_of.size(); ++layer)
    if (stage_of[layer] < 0)
      fail(ErrorCode::kBadInput, name_settings("--layout: no stage has layer '"), names[layer], "'; each layer is in one stage");
  return cut_graph(graph, std::move(stage_of));
}

at::Tensor run_layer_of_stage(const LayerGraph& graph, size_t layer, const LayerGraph::Inputs& inputs) {
  try {
    return graph.run_layer(layer, inputs);
  } catch (const Error& error) {
    if (std::string(error.what()).find("used in an in-place operation") == std::string::npos) throw;
    fail(ErrorCode::kBadInput, "layer '", graph.layers()[layer].name,
         "' works in place on its input, which is what another stage handed over ",
         "here and will be asked for a gradient; use inplace(false), or a split that leaves it in the stage of the layer before it");
  }
}

}  // namespace cohort

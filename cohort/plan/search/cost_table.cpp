// Costs of layers and their sums.
//
// Exchanges of tp: a divided layer has num_tensor_exchanges all-reduces of its output in forward and as many in backward. A table for
// bounds takes the faster of the two links; tp lies inside of a host in every layout that is searched.
//
// Paths: a value passes from layer to layer, so before a layer starts some path of layers has done its forwards, and when it is done the
// same path has its backwards before it. path_whole[i]: the longest path to layer i, without it, of forward and whole backward (what a
// schedule with undivided backwards does before and after layer i, for one micro-batch); path_split[i]: of forward and input part alone.
//
// Cost: layers + edges a table.

#include "cohort/plan/search/cost_table.h"

#include <algorithm>

namespace cohort {
namespace {

constexpr size_t kMostLayers = 2'000'000;  // Of all tables together: some 200 MB.

void add_sums(LayerCosts& costs, const std::vector<std::pair<int, int>>& edges) {
  const size_t n = costs.layers.size();
  costs.seconds_before.assign(n + 1, 0);
  costs.stash_before.assign(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    costs.seconds_before[i + 1] = costs.seconds_before[i] + costs.layers[i].all();
    costs.stash_before[i + 1] = costs.stash_before[i] + costs.stash[i];
    costs.largest = std::max(costs.largest, costs.layers[i].all());
    costs.forward_seconds += costs.layers[i].forward;
    costs.largest_stash = std::max(costs.largest_stash, costs.stash[i]);
    costs.all_outputs += costs.output[i];
  }
  costs.path_whole.assign(n, 0);
  costs.path_split.assign(n, 0);
  std::vector<std::vector<int>> inputs(n);
  for (const auto& [from, to] : edges)
    if (from >= 0) inputs[static_cast<size_t>(to)].push_back(from);
  for (size_t i = 0; i < n; ++i) {
    for (const int input : inputs[i]) {
      const auto from = static_cast<size_t>(input);
      const LayerCosts::Layer& layer = costs.layers[from];
      costs.path_whole[i] = std::max(costs.path_whole[i], costs.path_whole[from] + layer.all());
      costs.path_split[i] = std::max(costs.path_split[i], costs.path_split[from] + layer.forward + layer.backward_input);
    }
    costs.longest_whole = std::max(costs.longest_whole, costs.path_whole[i] + costs.layers[i].all());
    costs.longest_split = std::max(costs.longest_split, costs.path_split[i] + costs.layers[i].forward + costs.layers[i].backward_input);
  }
}

}  // namespace

const LayerCosts& CostTable::on_device(const std::string& precision, int tp, int64_t micro_batch, int kind) {
  return find(precision, tp, micro_batch, {kind}, false);
}

const LayerCosts& CostTable::least(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds) {
  return find(precision, tp, micro_batch, kinds, true);
}

const LayerCosts& CostTable::find(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds,
                                  bool for_bound) {
  Key key{precision, tp, micro_batch, kinds};
  std::unique_ptr<LayerCosts>& table = tables_[for_bound ? 1 : 0][key];
  if (!table) table = make(key, for_bound);
  return *table;
}

void CostTable::trim() {
  for (auto& tables : tables_)
    if (tables.size() * problem_.profile.layers.size() > kMostLayers) tables.clear();
}

std::unique_ptr<LayerCosts> CostTable::make(const Key& key, bool for_bound) const {
  const auto& [precision, tp, micro_batch, kinds] = key;
  auto out = std::make_unique<LayerCosts>();
  for (const int kind : kinds) {
    const Profile profile =
        profile_at(problem_.profile, {problem_.cluster.devices[static_cast<size_t>(kind)].name, precision, tp, micro_batch});
    for (size_t i = 0; i < profile.layers.size(); ++i) {
      const LayerProfile& from = profile.layers[i];
      const ProfiledLayer& layer = problem_.profile.layers[i];
      double exchange = 0;
      if (tp > 1 && layer.num_tensor_exchanges > 0 && layer.tensor_parts % tp == 0) {
        const auto bytes = static_cast<double>(from.output_bytes);
        exchange = exchange_seconds(problem_.cluster, Exchange::kAllReduce, tp, false, bytes);
        if (for_bound) exchange = std::min(exchange, exchange_seconds(problem_.cluster, Exchange::kAllReduce, tp, true, bytes));
        exchange *= layer.num_tensor_exchanges;
      }
      const LayerCosts::Layer its{from.forward_seconds + exchange, from.backward_input_seconds + exchange, from.backward_weight_seconds};
      if (out->layers.size() <= i) {
        out->layers.push_back(its);
        out->stash.push_back(from.stash_bytes);
        out->output.push_back(from.output_bytes);
        continue;
      }
      LayerCosts::Layer& least = out->layers[i];
      least = {std::min(least.forward, its.forward), std::min(least.backward_input, its.backward_input),
               std::min(least.backward_weight, its.backward_weight)};
      out->stash[i] = std::min(out->stash[i], from.stash_bytes);
      out->output[i] = std::min(out->output[i], from.output_bytes);
    }
  }
  add_sums(*out, problem_.profile.edges);
  return out;
}

}  // namespace cohort

// Plans for PipeDream's profiles: stages of downsets with replicas, so that the slowest stage or transfer takes least time.
//
//  1. The file is read (pipedream_file.cpp).
//  2. Bounds from the instance alone: "area", all seconds over all machines; "largest layer", a layer on as many replicas as are best for
//     it. No stage is faster than either.
//  3. One level: the search over prefixes of a few linear orders gives a good plan; the same search over all downsets gives the optimum,
//     or ends as the linear orders' answer where there are more than kMostDownsets or time is up. Two levels: nested_stages.cpp.
//
// The bytes A of a cut are counted as PipeDream does, which is more than the exact count where a cut goes through branches: outputs of
// the done nodes that have no successor among the done, and of each ancestor of such a node with a successor that is neither that node
// nor an ancestor of it. Stages are timed as in check.py of the instances, the first stage's output at its successor only.
//
// Cost: that of the searches. Source: Narayanan et al. 2019, "PipeDream", section 3.1, and optimizer_graph_hierarchical.py of
// msr-fiddle/pipedream. We differ in that states are all downsets, not its antichains of one branch, and that plans are proven.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/plan/public/instance_search.h"
#include "cohort/plan/public/pipedream_file.h"
#include "cohort/plan/public/public_instance.h"
#include "cohort/plan/search/nested_stages.h"
#include "cohort/plan/search/replicated_stages.h"

namespace cohort {
namespace {

constexpr size_t kMostDownsets = 200'000, kMostDownsetsInTwoLevels = 1500;
constexpr size_t kFewDownsets = 3000;  // So few are searched at once, without linear orders before.
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// For each node its ancestors with a successor that is neither the node nor an ancestor of it.
std::vector<std::vector<int>> open_ancestors(const Dag& dag) {
  std::vector<std::vector<int>> open(dag.num_nodes());
  std::vector<std::vector<bool>> ancestor(dag.num_nodes(), std::vector<bool>(dag.num_nodes()));
  for (int node = 0; node < dag.num_nodes(); ++node) {
    std::vector<bool>& mine = ancestor[node];
    for (const int before : dag.before[node]) {
      mine[before] = true;
      for (int other = 0; other < before; ++other)
        if (ancestor[before][other]) mine[other] = true;
    }
    const auto leaves = [&](int successor) { return successor != node && !mine[successor]; };
    for (int other = 0; other < node; ++other)
      if (mine[other] && std::any_of(dag.after[other].begin(), dag.after[other].end(), leaves)) open[node].push_back(other);
  }
  return open;
}

/// PipeDream's count of the bytes that cross the cut after each downset.
std::vector<double> crossing_bytes(const PipedreamGraph& graph, const Downsets& sets) {
  const std::vector<std::vector<int>> open = open_ancestors(graph.dag);
  std::vector<double> bytes(sets.size());
  std::vector<size_t> counted(graph.names.size());  // The last set, plus one, at which a node was.
  for (size_t set = 0; set < sets.size(); ++set) {
    const auto count = [&](int node) {
      if (counted[node] != set + 1) bytes[set] += graph.output_bytes[node];
      counted[node] = set + 1;
    };
    for (const int node : sets.between(0, set)) {
      const std::vector<int>& after = graph.dag.after[node];
      if (std::any_of(after.begin(), after.end(), [&](int next) { return sets.holds(set, next); })) continue;
      count(node);
      for (const int ancestor : open[node]) count(ancestor);
    }
  }
  return bytes;
}

CutCosts costs_of(const PipedreamGraph& graph, const Downsets& sets) {
  return {.seconds = sets.sums(graph.seconds),
          .parameter_bytes = sets.sums(graph.parameter_bytes),
          .crossing_bytes = crossing_bytes(graph, sets)};
}

Json names_between(const PipedreamGraph& graph, const Downsets& sets, size_t begin, size_t end) {
  Json names = Json::array();
  for (const int node : sets.between(begin, end)) names.push_back(graph.names[node]);
  return names;
}

Json stages_json(const PipedreamGraph& graph, const Downsets& sets, const std::vector<ReplicatedStage>& stages) {
  Json list = Json::array();
  for (const ReplicatedStage& stage : stages)
    list.push_back({{"replicas", stage.replicas}, {"nodes", names_between(graph, sets, stage.begin, stage.end)}});
  return list;
}

class Planner : InstanceSearch {
 public:
  Planner(const std::string& path, const InstanceOptions& options)
      : InstanceSearch(options.search_seconds), graph_(read_pipedream_graph(path)) {
    read_levels(path, options);
  }

  InstanceAnswer solve() {
    find_bound();
    if (levels_.size() == 1) solve_one_level();
    else solve_two_levels();
    return finish();
  }

 private:
  void read_levels(const std::string& path, const InstanceOptions& options) {
    std::vector<int> machines = options.machines;
    if (machines.empty()) machines = {options.devices.value_or(4)};
    std::vector<double> speeds = options.bytes_per_second;
    if (speeds.empty()) speeds.assign(machines.size(), 1e9);
    if (machines.size() > 2)
      fail(ErrorCode::kBadInput, quote_text(path), ": expected one or two levels of machines, found ", machines.size());
    if (machines.size() != speeds.size())
      fail(ErrorCode::kBadInput, quote_text(path), ": expected one bandwidth for each of ", machines.size(), " levels, found ",
           speeds.size());
    for (size_t i = 0; i < machines.size(); ++i) {
      if (machines[i] < 1 || machines[i] > 100'000)
        fail(ErrorCode::kBadInput, quote_text(path), ": expected 1 to 100000 machines, found ", machines[i]);
      if (!(speeds[i] > 0 && speeds[i] <= 1e30))
        fail(ErrorCode::kBadInput, quote_text(path), ": expected a bandwidth above 0 and up to 1e30 bytes a second, found ", speeds[i]);
      levels_.push_back({.machines = machines[i], .bytes_per_second = speeds[i]});
    }
    if (levels_.size() == 2 && (machines[0] > 64 || machines[1] > 1000))
      fail(ErrorCode::kBadInput, quote_text(path), ": expected up to 64 machines on the inner level and 1000 on the outer, found ",
           machines[0], "x", machines[1]);
  }

  void find_bound() {
    double seconds = 0, machines = 1, largest = 0;
    for (const MachineLevel& level : levels_) machines *= level.machines;
    for (size_t node = 0; node < graph_.names.size(); ++node) {
      seconds += graph_.seconds[node];
      largest = std::max(largest, least_seconds(node));
    }
    take_bound(seconds / machines, "area");
    take_bound(largest, "largest layer");
  }

  /// Of the stage of a layer. On two levels the exchange is left out: its share depends on the stage's place.
  double least_seconds(size_t node) const {
    const double seconds = graph_.seconds[node], bytes = graph_.parameter_bytes[node];
    if (levels_.size() == 2) return seconds / levels_[0].machines / levels_[1].machines;
    return std::min(seconds, levels_[0].stage_seconds(seconds, bytes, levels_[0].machines));
  }

  void take_plan(double objective, Json stages) {
    answer_.objective = objective;
    Json machines = Json::array(), speeds = Json::array();
    for (const MachineLevel& level : levels_) {
      machines.push_back(level.machines);
      speeds.push_back(level.bytes_per_second);
    }
    answer_.plan = {{"machines", machines}, {"bandwidth", speeds}, {"stages", std::move(stages)}};
  }

  /// Proves bounds only over all downsets.
  void search(const Downsets& sets, double known) {
    const StageSearch found = search_replicated_stages(sets, costs_of(graph_, sets), levels_[0], answer_.lower_bound, known, deadline());
    if (!found.stages.empty()) take_plan(found.objective, stages_json(graph_, sets, found.stages));
    if (sets.complete()) take_bound(found.proven_seconds, "exhaustive search");
  }

  void solve_one_level() {
    const Downsets all = all_downsets(graph_.dag, kMostDownsets);
    double known = kInfinity;
    if (all.size() == 0 || all.size() > kFewDownsets) {
      search(linear_downsets(graph_.dag, graph_.output_bytes), known);
      known = answer_.objective;
    }
    if (all.size() > 0) search(all, known);
  }

  /// One linear order first: a plan in little time, which prunes most of the rest.
  void solve_two_levels() {
    search_nested(linear_downsets(graph_.dag, graph_.output_bytes, LinearOrders::kOne), kInfinity);
    const Downsets all = all_downsets(graph_.dag, kMostDownsetsInTwoLevels);
    search_nested(all.size() > 0 ? all : linear_downsets(graph_.dag, graph_.output_bytes), answer_.objective);
  }

  void search_nested(const Downsets& sets, double known) {
    const CutCosts costs = costs_of(graph_, sets);
    const NestedSearch found = search_nested_stages(sets, costs, levels_[0], levels_[1], answer_.lower_bound, known, deadline());
    Json stages = Json::array();
    for (const NestedStage& stage : found.stages)
      stages.push_back({{"replicas", stage.replicas}, {"stages", stages_json(graph_, sets, stage.stages)}});
    if (!stages.empty()) take_plan(found.objective, std::move(stages));
    if (sets.complete()) take_bound(found.proven_seconds, "exhaustive search");
  }

  PipedreamGraph graph_;
  std::vector<MachineLevel> levels_;
};

}  // namespace

InstanceAnswer solve_pipedream(const std::string& path, const InstanceOptions& options) { return Planner(path, options).solve(); }

}  // namespace cohort

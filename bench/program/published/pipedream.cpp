// Plans for PipeDream's profiles: stages of downsets with replicas, so that the slowest stage or transfer takes least time.
//
//  1. The file is read (Reader).
//  2. Bounds from the instance alone: "area", all seconds over all machines; "largest layer", a layer on as many replicas as are best for
//     it. No stage is faster than either.
//  3. One level: the search over prefixes of a few linear orders gives a good plan; the same search over all downsets gives the optimum,
//     or ends as the linear orders' answer where there are more than kMostDownsets or time is up. Two levels: replicated_stages.cpp.
//
// The bytes A of a cut are counted as PipeDream does, which is more than the exact count where a cut goes through branches: outputs of
// the done nodes that have no successor among the done, and of each ancestor of such a node with a successor that is neither that node
// nor an ancestor of it. Stages are timed as in check.py of the instances, the first stage's output at its successor only.
//
// Cost: that of the searches. Source: Narayanan et al. 2019, "PipeDream", section 3.1, and optimizer_graph_hierarchical.py of
// msr-fiddle/pipedream. We differ in that states are all downsets, not its antichains of one branch, and that plans are proven.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/program/published/instance_search.h"
#include "bench/program/published/published_instances.h"
#include "bench/program/published/replicated_stages.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/cut/downsets.h"

namespace cohort {
namespace {

/// A profile of PipeDream's (graph.txt): a graph of layers with times and bytes of one mini-batch. Without what PipeDream leaves out:
/// inputs, and unused outputs of tuples. All vectors go by the numbers of `dag`.
struct PipedreamGraph {
  Dag dag;
  std::vector<std::string> names;
  std::vector<double> seconds;  ///< Forward and backward.
  std::vector<double> output_bytes, parameter_bytes;
};

// Reads graph.txt. Error(kBadInput) names file, line, what was expected and what was found.
//
// A line of a node: ID -- WHAT -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES
// A line of an edge: a tab or blanks, then FROM -- TO; both nodes stand further up. Blank lines are skipped.
//  1. Every line is checked: four fields, each once, each a finite number of at least zero. An activation may be a list [a; b; c], whose
//     sum counts. What follows a third " -- " (stages that PipeDream wrote there) is not read.
//  2. As PipeDream's optimizer does, nodes without predecessors called "Input..." are taken out, then nodes without successors called
//     "__getitem__...".
//  3. The rest is numbered along its edges; a cycle is refused.
//
// Source: the files and README of msr-fiddle/pipedream (Narayanan et al. 2019, "PipeDream", section 3.1).

constexpr size_t kMostFileBytes = size_t{16} << 20;
constexpr size_t kMostNodes = 5000, kMostEdges = 100'000;
constexpr double kMostValue = 1e30;  // Sums and products of smaller values stay finite.
constexpr std::array<std::string_view, 4> kFields = {"forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"};

/// Splits a line: ID, WHAT, fields for a node; two parts for an edge.
std::vector<std::string_view> split_view(std::string_view line, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = line.find(separator);
    parts.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return parts;
    line.remove_prefix(end + separator.size());
  }
}

struct Node {
  std::string name, what;
  std::array<double, 4> values{};  // In the order of kFields.
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  PipedreamGraph read() {
    const std::string text = read_small_file(path_, kMostFileBytes);
    for (const std::string_view line : split_view(text, "\n")) {
      ++line_number_;
      if (trim(line).empty()) continue;
      if (line[0] == ' ' || line[0] == '\t') read_edge(trim(line));
      else read_node(trim(line));
    }
    leave_out_unused();
    return graph();
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(std::string_view found, const Parts&... expected) const {
    fail(ErrorCode::kBadInput, quote_text(path_), " line ", line_number_, ": expected ", expected..., ", found ", quote_text(found));
  }

  double number(std::string_view text, std::string_view field) const {
    const std::optional<double> value = parse_number(trim(text));
    if (!value || *value < 0 || *value > kMostValue) refuse(text, field, " as a number from 0 to 1e30");
    return *value;
  }

  double number_or_sum(std::string_view text, std::string_view field) const {
    if (text.empty() || text.front() != '[') return number(text, field);
    if (text.back() != ']') refuse(text, "']' at the end of a list");
    double sum = 0;
    for (const std::string_view value : split_view(text.substr(1, text.size() - 2), ";")) sum += number(value, field);
    return sum;
  }

  void read_field(std::string_view text, Node& node, std::array<bool, 4>& seen) const {
    const size_t equals = text.find('=');
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (equals == std::string_view::npos || text.substr(0, equals) != kFields[i]) continue;
      if (seen[i]) refuse(text, kFields[i], " once");
      seen[i] = true;
      node.values[i] = number_or_sum(text.substr(equals + 1), kFields[i]);
      return;
    }
    refuse(text, "forward_compute_time=, backward_compute_time=, activation_size= or parameter_size=");
  }

  void read_node(std::string_view line) {
    const std::vector<std::string_view> parts = split_view(line, " -- ");
    if (parts.size() != 3 && parts.size() != 4) refuse(line, "ID -- WHAT -- forward_compute_time=...");
    Node node{.name = trim(parts[0]), .what = trim(parts[1]), .values = {}};
    if (node.name.empty()) refuse(line, "the name of a node");
    std::array<bool, 4> seen{};
    for (const std::string_view field : split_view(parts[2], ",")) read_field(trim(field), node, seen);
    for (size_t i = 0; i < seen.size(); ++i)
      if (!seen[i]) refuse(line, "a field ", kFields[i]);
    if (nodes_.size() == kMostNodes) refuse(line, "at most ", kMostNodes, " nodes");
    if (!number_of_.emplace(node.name, static_cast<int>(nodes_.size())).second) refuse(node.name, "a name that occurs once");
    nodes_.push_back(std::move(node));
  }

  int node_called(std::string_view name) const {
    const auto found = number_of_.find(std::string(name));
    if (found == number_of_.end()) refuse(name, "the name of a node that stands further up");
    return found->second;
  }

  void read_edge(std::string_view line) {
    const std::vector<std::string_view> parts = split_view(line, " -- ");
    if (parts.size() != 2) refuse(line, "FROM -- TO");
    if (edges_.size() == kMostEdges) refuse(line, "at most ", kMostEdges, " edges");
    const std::pair<int, int> edge(node_called(trim(parts[0])), node_called(trim(parts[1])));
    if (!edges_.insert(edge).second) refuse(line, "an edge that occurs once");
  }

  /// Takes out nodes that are at an end of the graph (of no edge's `end`) and whose kind begins with `what`.
  void leave_out(int std::pair<int, int>::* end, std::string_view what) {
    std::vector<bool> inner(nodes_.size());
    for (const std::pair<int, int>& edge : edges_) inner[edge.*end] = true;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!inner[i] && nodes_[i].what.starts_with(what)) left_out_[i] = true;
    std::erase_if(edges_, [&](const std::pair<int, int>& edge) { return left_out_[edge.first] || left_out_[edge.second]; });
  }

  void leave_out_unused() {
    check_cycles();
    left_out_.assign(nodes_.size(), false);
    leave_out(&std::pair<int, int>::second, "Input");
    leave_out(&std::pair<int, int>::first, "__getitem__");
  }

  void check_cycles() const {
    const OrderedDag ordered = order_dag(static_cast<int>(nodes_.size()), {edges_.begin(), edges_.end()});
    if (ordered.order.size() < nodes_.size()) fail(ErrorCode::kBadInput, quote_text(path_), ": expected a graph without cycles, found one");
  }

  PipedreamGraph graph() const {
    std::vector<int> kept, place(nodes_.size(), -1);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (left_out_[i]) continue;
      place[i] = static_cast<int>(kept.size());
      kept.push_back(static_cast<int>(i));
    }
    if (kept.empty()) fail(ErrorCode::kBadInput, quote_text(path_), ": expected at least one layer, found none");
    std::vector<std::pair<int, int>> edges;
    for (const auto& [from, to] : edges_) edges.emplace_back(place[from], place[to]);
    OrderedDag ordered = order_dag(static_cast<int>(kept.size()), edges);
    PipedreamGraph graph{.dag = std::move(ordered.dag), .names = {}, .seconds = {}, .output_bytes = {}, .parameter_bytes = {}};
    for (const int at : ordered.order) {
      const Node& node = nodes_[kept[at]];
      graph.names.push_back(node.name);
      graph.seconds.push_back((node.values[0] + node.values[1]) / 1000);
      graph.output_bytes.push_back(node.values[2]);
      graph.parameter_bytes.push_back(node.values[3]);
    }
    return graph;
  }

  std::string path_;
  size_t line_number_ = 0;
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> number_of_;
  std::set<std::pair<int, int>> edges_;
  std::vector<bool> left_out_;
};

constexpr size_t kMostDownsets = 200'000, kMostDownsetsInTwoLevels = 1500;
constexpr size_t kFewDownsets = 3000;  // Up to so many are searched at once, without linear orders first.
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
  Planner(const std::string& path, const InstanceOptions& options) : InstanceSearch(options.search_seconds), graph_(Reader(path).read()) {
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

  /// Least seconds of the stage of a layer. On two levels the exchange is left out: its share depends on the stage's place.
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

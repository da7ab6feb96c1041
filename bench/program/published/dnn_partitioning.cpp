// The instances of msr-fiddle/dnn-partitioning: where each node of a graph goes, accelerators of limited memory or CPU cores.
//
// Objective of throughput-inputs is the largest load (load_search.cpp): the time of a device's nodes, and the transfer of each
// output that it shares with another device. Objective of latency-inputs is the time of one sample (latency.cpp). Devices
// need not be contiguous. Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020; we
// differ in that their exact program is for contiguous plans and their general one needs a commercial solver.
//
// Everything in a file is checked before it is used: counts, flags, that numbers are finite and not negative, that ids are known and
// unique, that all edges out of a node carry one cost (it is paid once for the output), that no edge leads from the backward half to the
// forward one, and that there is no cycle. An edge that comes twice counts once. Cost: O(nodes + edges), once parsed.

#include "bench/program/published/dnn_partitioning.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>

#include "bench/program/published/load_search.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;
constexpr int kMostDevices = 100'000;

class Reader : JsonInstance {
 public:
  explicit Reader(const std::string& path) : JsonInstance(path, kMostBytes) {}

  PartitionGraph read() {
    if (!file().is_object()) wrong("the file", "an object", file());
    PartitionGraph graph;
    graph.num_accelerators = count("maxFPGAs", 1, kMostDevices);
    graph.num_cpus = count("maxCPUs", 0, kMostDevices);
    graph.memory_bytes = number(file(), "maxSizePerFPGA", "the file");
    graph.latency = is_latency();
    read_nodes(graph);
    read_edges(graph);
    sort(graph);
    number_groups(graph);
    check_sums(graph);
    return graph;
  }

 private:
  bool flag(const Value& object, const char* name, const std::string& place) const {
    const Value& value = member(object, name, place);
    if (value.is_boolean()) return value.get<bool>();
    if (!value.is_number() || (value != 0 && value != 1)) wrong(place + " \"" + name + '"', "0, 1, true or false", value);
    return value == 1;
  }

  const Value& list(const char* name) const {
    const Value& value = member(file(), name, "the file");
    if (!value.is_array() || value.size() > 10'000'000)
      wrong(concat('"', name, '"'), "a list", value.is_array() ? Value("one too long") : value);
    return value;
  }

  bool is_latency() const {
    if (const auto at = file().find("objective"); at != file().end()) {
      if (*at != "latency" && *at != "max load") wrong("\"objective\"", "\"latency\" or \"max load\"", *at);
      return *at == "latency";
    }
    return ('/' + path()).find("/latency-inputs/") != std::string::npos;
  }

  void read_nodes(PartitionGraph& graph) {
    const Value& nodes = list("nodes");
    if (nodes.empty()) wrong("\"nodes\"", "at least one node", nodes);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const std::string place = concat("nodes[", i, "]");
      const Value& from = nodes[i];
      PartitionGraph::Node node;
      node.id = integer(from, "id", place);
      node.accelerator_time = number(from, "fpgaLatency", place);
      node.cpu_time = number(from, "cpuLatency", place);
      if (from.contains("size")) node.bytes = number(from, "size", place);
      node.on_accelerator = flag(from, "supportedOnFpga", place);
      node.backward = flag(from, "isBackwardNode", place);
      if (!index_.emplace(node.id, static_cast<int>(i)).second) wrong(place + " \"id\"", "an id of its own", from["id"]);
      const std::string color = from.contains("colorClass") ? "class " + color_of(from["colorClass"], place) : concat("node ", i);
      node.group = color_.emplace(color, static_cast<int>(color_.size())).first->second;
      graph.nodes.push_back(std::move(node));
    }
  }

  std::string color_of(const Value& color, const std::string& place) const {
    if (!color.is_number_integer() && !color.is_string()) wrong(place + " \"colorClass\"", "a whole number or a name", color);
    return color.dump(-1, ' ', true, Value::error_handler_t::replace);
  }

  int node_of(const Value& edge, const char* name, const std::string& place) const {
    const auto at = index_.find(integer(edge, name, place));
    if (at == index_.end()) wrong(place + " \"" + name + '"', "the id of a node", edge[name]);
    return at->second;
  }

  void read_edges(PartitionGraph& graph) const {
    const Value& edges = list("edges");
    std::vector<bool> has_cost(graph.nodes.size());
    for (size_t i = 0; i < edges.size(); ++i) {
      const std::string place = concat("edges[", i, "]");
      const int from = node_of(edges[i], "sourceId", place), to = node_of(edges[i], "destId", place);
      PartitionGraph::Node& source = graph.nodes[from];
      const double cost = number(edges[i], "cost", place);
      if (from == to) wrong(place, "an edge between two nodes", edges[i]);
      if (has_cost[from] && std::abs(source.cost - cost) >= 1e-6)
        wrong(place + " \"cost\"", concat("the ", source.cost, " of the other edges out of node ", source.id), edges[i]["cost"]);
      if (source.backward && !graph.nodes[to].backward) wrong(place, "no edge from a backward node to a forward one", edges[i]);
      if (!has_cost[from]) source.cost = cost;
      has_cost[from] = true;
      source.readers.push_back(to);
      graph.nodes[to].inputs.push_back(from);
    }
  }

  /// Sorts topologically by Kahn's algorithm, ties by the order in the file.
  void sort(PartitionGraph& graph) const {
    std::vector<int> missing, order, place(graph.nodes.size());
    for (PartitionGraph::Node& node : graph.nodes) {
      for (std::vector<int>* list : {&node.inputs, &node.readers}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
      }
      missing.push_back(static_cast<int>(node.inputs.size()));
    }
    for (size_t i = 0; i < missing.size(); ++i)
      if (missing[i] == 0) order.push_back(static_cast<int>(i));
    for (size_t done = 0; done < order.size(); ++done)
      for (const int reader : graph.nodes[order[done]].readers)
        if (--missing[reader] == 0) order.push_back(reader);
    if (order.size() < graph.nodes.size()) {
      const auto left = std::find_if(missing.begin(), missing.end(), [](int inputs) { return inputs > 0; }) - missing.begin();
      fail(ErrorCode::kBadInput, path(), ": \"edges\": expected no cycle, found one before or around node ", graph.nodes[left].id);
    }
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
    std::vector<PartitionGraph::Node> sorted;
    for (const int i : order) {
      sorted.push_back(std::move(graph.nodes[i]));
      for (std::vector<int>* list : {&sorted.back().inputs, &sorted.back().readers})
        for (int& other : *list) other = place[other];
    }
    graph.nodes = std::move(sorted);
  }

  static void number_groups(PartitionGraph& graph) {
    std::unordered_map<int, int> number;
    for (PartitionGraph::Node& node : graph.nodes) node.group = number.emplace(node.group, static_cast<int>(number.size())).first->second;
    graph.num_groups = static_cast<int>(number.size());
  }

  void check_sums(const PartitionGraph& graph) const {
    double sum = 0;
    for (const PartitionGraph::Node& node : graph.nodes) {
      const auto uses = static_cast<double>(node.readers.size() + 1);
      sum += node.accelerator_time + node.cpu_time + node.bytes + uses * node.cost;
    }
    if (!(sum < 1e200))
      fail(ErrorCode::kBadInput, path(), ": \"nodes\": expected times and sizes that can be added up, found a sum of ", sum);
  }

  std::unordered_map<int64_t, int> index_;
  std::map<std::string, int> color_;
};

}  // namespace

PartitionGraph read_partition_graph(const std::string& path, const InstanceOptions& options) {
  PartitionGraph graph = Reader(path).read();
  if (options.devices) graph.num_accelerators = *options.devices;
  if (options.memory_bytes) graph.memory_bytes = *options.memory_bytes;
  // More devices than groups have no use.
  graph.num_accelerators = std::min(graph.num_accelerators, graph.num_groups);
  graph.num_cpus = std::min(graph.num_cpus, graph.num_groups);
  return graph;
}

LoadProblem load_problem_of(const PartitionGraph& graph) {
  LoadProblem problem;
  problem.num_accelerators = graph.num_accelerators;
  problem.num_cpus = graph.num_cpus;
  problem.memory_bytes = graph.memory_bytes;
  problem.items.resize(static_cast<size_t>(graph.num_groups));
  for (const PartitionGraph::Node& node : graph.nodes) {
    LoadProblem::Item& item = problem.items[node.group];
    item.work += node.on_accelerator ? node.accelerator_time : std::numeric_limits<double>::infinity();
    item.cpu_work += node.cpu_time;
    item.bytes += node.bytes;
    if (node.readers.empty() || node.cost == 0) continue;
    LoadProblem::Net net = {node.cost, {node.group}};
    for (const int reader : node.readers) net.pins.push_back(graph.nodes[reader].group);
    std::sort(net.pins.begin(), net.pins.end());
    net.pins.erase(std::unique(net.pins.begin(), net.pins.end()), net.pins.end());
    if (net.pins.size() > 1) problem.nets.push_back(std::move(net));
  }
  return problem;
}

Json partition_plan_json(const PartitionGraph& graph, const Placement& placement) {
  const auto ids_of = [&](int part) {
    Json ids = Json::array();
    for (const PartitionGraph::Node& node : graph.nodes)
      if (placement[node.group] == part) ids.push_back(node.id);
    return ids;
  };
  Json plan = {{"devices", Json::array()}, {"cpus", Json::array()}};
  const int most = placement.empty() ? 0 : *std::max_element(placement.begin(), placement.end()) + 1;
  for (int part = 0; part < std::max(most, graph.num_accelerators); ++part)
    plan[part < graph.num_accelerators ? "devices" : "cpus"].push_back(ids_of(part));
  return plan;
}

namespace {

[[noreturn]] void fail_infeasible(const std::string& path, const PartitionGraph& graph, const LoadProblem& problem) {
  double sum = 0, largest = 0;
  for (const LoadProblem::Item& item : problem.items) sum += item.bytes, largest = std::max(largest, item.bytes);
  fail(ErrorCode::kInfeasible, path, ": no plan was found in which ", graph.num_accelerators, " accelerators of ", graph.memory_bytes,
       " bytes hold what no CPU core takes: all pieces need ", sum, " bytes, the largest ", largest,
       "; more devices, more memory (--memory) or a CPU core would do");
}

InstanceAnswer search_max_load(const std::string& path, const PartitionGraph& graph, const InstanceOptions& options) {
  const LoadProblem problem = load_problem_of(graph);
  std::vector<int> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  const auto found = search_loads(problem, order, {.search_seconds = options.search_seconds, .seed = options.search_seed});
  if (!found) fail_infeasible(path, graph, problem);
  return {.objective = found->largest_load,
          .lower_bound = found->bound.value,
          .bound_by = found->bound.by,
          .optimal = found->optimal,
          .plan = partition_plan_json(graph, found->placement)};
}

}  // namespace

InstanceAnswer solve_dnn_partitioning(const std::string& path, const InstanceOptions& options) {
  const double start = steady_seconds();
  const PartitionGraph graph = read_partition_graph(path, options);
  InstanceAnswer answer = graph.latency ? search_latency(graph, options) : search_max_load(path, graph, options);
  answer.search_seconds = steady_seconds() - start;
  return answer;
}

}  // namespace cohort

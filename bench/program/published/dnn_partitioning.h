#pragma once
// The graphs of the dnn-partitioning repository (docs/guide/bench.md, Plan), and the parts of their search.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/program/published/load_search.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {

struct PartitionGraph {
  struct Node {
    int64_t id = 0;  ///< In the file.
    double accelerator_time = 0, cpu_time = 0, bytes = 0;
    double cost = 0;  ///< Of moving its output.
    bool on_accelerator = true, backward = false;
    int group = 0;  ///< Its colour class, numbered from 0; nodes of none have a group of their own.
    std::vector<int> inputs, readers;
  };
  std::vector<Node> nodes;  ///< In an order in which inputs come first.
  int num_groups = 0, num_accelerators = 1, num_cpus = 0;
  double memory_bytes = 0;
  bool latency = false;  ///< The objective is one sample's latency, not the largest load.
};

/// The file with the options in place of its own values. The objective is latency where the file says "objective": "latency" or, without
/// that key, lies in a folder `latency-inputs`. Error(kBadInput).
PartitionGraph read_partition_graph(const std::string& path, const InstanceOptions& options);

/// Items are groups in the order of their first node; nets are outputs.
LoadProblem load_problem_of(const PartitionGraph& graph);

/// {"devices": [[id, ...], ...], "cpus": [...]}: a part for each group.
Json partition_plan_json(const PartitionGraph& graph, const Placement& placement);

/// Times plans of one graph; keeps its memory from call to call.
class LatencyClock {
 public:
  explicit LatencyClock(const PartitionGraph& graph) : graph_(graph), block_of_(graph.nodes.size()), depth_(graph.nodes.size()) {}

  /// When the last node ends; infinite where pieces of devices wait for each other. A part from num_accelerators on is a CPU core.
  double time(const Placement& placement);

 private:
  bool on_cpu(int part) const { return part >= graph_.num_accelerators; }
  void find_blocks(const Placement& placement);
  void find_pieces(const Placement& placement, int part);
  double run();
  double finish(int block);

  const PartitionGraph& graph_;
  std::vector<int> block_of_;  ///< Of each node: what runs as one.
  std::vector<int> depth_, missing_, ready_, inputs_;
  std::vector<double> done_;
  std::vector<std::vector<int>> members_;  ///< Of each block.
  size_t num_accelerator_blocks_ = 0;      ///< CPU nodes come behind them.
};

/// The answer for a graph whose objective is latency.
InstanceAnswer search_latency(const PartitionGraph& graph, const InstanceOptions& options);

}  // namespace cohort

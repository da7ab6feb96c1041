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
    int64_t id = 0;  ///< Id in the file.
    double accelerator_time = 0, cpu_time = 0, bytes = 0;
    double cost = 0;  ///< Seconds to move its output.
    bool on_accelerator = true, backward = false;
    int group = 0;  ///< Its colour class, numbered from 0; uncoloured nodes have a group each.
    std::vector<int> inputs, readers;
  };
  std::vector<Node> nodes;  ///< In topological order.
  int num_groups = 0, num_accelerators = 1, num_cpus = 0;
  double memory_bytes = 0;
  bool latency = false;  ///< The objective is one sample's latency, not the largest load.
};

/// Reads the file; options override its values. The objective is latency if the file says "objective": "latency" or, without
/// that key, lies in a folder `latency-inputs`. Error(kBadInput).
PartitionGraph read_partition_graph(const std::string& path, const InstanceOptions& options);

/// The load problem: items are groups in the order of their first node, nets are outputs.
LoadProblem load_problem_of(const PartitionGraph& graph);

/// {"devices": [[id, ...], ...], "cpus": [...]}: the part of each group.
Json partition_plan_json(const PartitionGraph& graph, const Placement& placement);

/// Computes the latency of plans of one graph; its buffers are reused.
class LatencyClock {
 public:
  explicit LatencyClock(const PartitionGraph& graph) : graph_(graph), block_of_(graph.nodes.size()), depth_(graph.nodes.size()) {}

  /// The time at which the last node ends; infinite if segments of devices wait for each other. A part from num_accelerators on is a CPU
  /// core.
  double time(const Placement& placement);

 private:
  bool on_cpu(int part) const { return part >= graph_.num_accelerators; }
  void find_blocks(const Placement& placement);
  void find_pieces(const Placement& placement, int part);
  double run();
  double finish(int block);

  const PartitionGraph& graph_;
  std::vector<int> block_of_;  ///< The block of each node; a block runs as a whole.
  std::vector<int> depth_, missing_, ready_, inputs_;
  std::vector<double> done_;
  std::vector<std::vector<int>> members_;  ///< The nodes of each block.
  size_t num_accelerator_blocks_ = 0;      ///< Blocks of CPU nodes follow.
};

/// The answer for a graph whose objective is latency.
InstanceAnswer search_latency(const PartitionGraph& graph, const InstanceOptions& options);

}  // namespace cohort

#pragma once
// One sample through a plan of a PartitionGraph.

#include <cstddef>
#include <vector>

#include "cohort/plan/public/partition_graph.h"

namespace cohort {

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

/// The answer for a graph whose objective is latency. `path` is named in errors.
InstanceAnswer search_latency(const std::string& path, const PartitionGraph& graph, const InstanceOptions& options);

}  // namespace cohort

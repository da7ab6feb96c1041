#pragma once
// The graphs of the dnn-partitioning repository (docs/guide/bench.md, Plan), read and checked.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/plan/public/public_instance.h"
#include "cohort/plan/search/load_problem.h"

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

}  // namespace cohort

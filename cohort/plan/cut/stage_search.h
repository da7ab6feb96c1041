#pragma once
// Which layers of a graph make a stage, and how many devices it gets: exact where the graph has few downsets.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace cohort {

struct StageProblem {
  struct Layer {
    double forward_seconds = 0, backward_seconds = 0;
    double weight_bytes = 0, stash_bytes = 0;
    double transfer_seconds = 0;  ///< Of its output, over the link.
  };
  std::vector<Layer> layers;
  std::vector<std::pair<int, int>> edges;  ///< (from, to), without a cycle.
  int num_devices = 1;
  double memory_bytes = 0;    ///< Of a device; infinite: no limit.
  int num_micro_batches = 0;  ///< Of a synchronous step; 0: steady state, where the slowest stage is the objective.
  bool may_pipeline = true, may_replicate = true;
};

struct StageAnswer {
  struct Stage {
    std::vector<int> layers;
    int num_devices = 1;
    double load_seconds = 0;
  };
  std::vector<Stage> stages;  ///< In the order of the pipeline.
  double objective = 0, lower_bound = 0;
  const char* bound_by = "search";
  bool optimal = false;
};

/// nullopt where no plan fits in memory. Error(kBadInput) for a graph with a cycle.
std::optional<StageAnswer> search_stages(const StageProblem& problem, double search_seconds);

}  // namespace cohort

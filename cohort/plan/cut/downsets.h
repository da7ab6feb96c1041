#pragma once
// Where a graph can be cut: its downsets, the sets of nodes that hold all predecessors of their nodes; and the search for the best stages
// over them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

enum class LinearOrders { kSeveral, kOne };
/// Which ready node comes next: the one that became ready last, or the one with the lowest number.
enum class NextNode { kLastReady, kLowest };

/// Nodes are numbered so that edges go from lower to higher numbers.
struct Dag {
  std::vector<std::vector<int>> before, after;

  int num_nodes() const { return static_cast<int>(before.size()); }
};

/// Makes a Dag of `edges` between nodes 0..num_nodes-1. order[i] is the node that has number i in the Dag; where the edges have a cycle
/// `order` is shorter than num_nodes, and `dag` is empty.
struct OrderedDag {
  Dag dag;
  std::vector<int> order;
};
COHORT_PROGRAM_API OrderedDag order_dag(int num_nodes, const std::vector<std::pair<int, int>>& edges, NextNode next = NextNode::kLastReady);

class Downsets;

/// All downsets; empty where there are more than `most_sets` or they would take more than 256 MiB.
COHORT_PROGRAM_API Downsets all_downsets(const Dag& dag, size_t most_sets);
/// The prefixes of a handful of topological orders, or of the best one of them: some times num_nodes sets.
COHORT_PROGRAM_API Downsets linear_downsets(const Dag& dag, const std::vector<double>& output_bytes,
                                            LinearOrders orders = LinearOrders::kSeveral);
/// The prefixes of the order in which the nodes are numbered.
Downsets prefix_downsets(const Dag& dag);
/// No node and all nodes: a graph that is not cut.
Downsets uncut_downsets(int num_nodes);

/// Sets of nodes as bits, each larger than or as large as those before; the first is empty, the last holds all nodes.
class COHORT_PROGRAM_API Downsets {
 public:
  explicit Downsets(int num_nodes) : num_nodes_(num_nodes), num_words_((num_nodes + 63) / 64) {}

  size_t size() const { return size_; }
  int num_nodes() const { return num_nodes_; }
  const uint64_t* words(size_t set) const { return words_.data() + set * num_words_; }
  bool holds(size_t set, int node) const { return words(set)[node / 64] >> (node % 64) & 1; }
  /// Whether every node of `small` is in `large`.
  bool is_subset(size_t small, size_t large) const;
  /// The nodes of `large` that are not in `small`, ascending.
  std::vector<int> between(size_t small, size_t large) const;
  /// For each set the sum of its nodes' weights.
  std::vector<double> sums(const std::vector<double>& weights) const;
  /// All downsets of the graph are here; otherwise those of some linear orders.
  bool complete() const { return complete_; }

 private:
  friend Downsets all_downsets(const Dag& dag, size_t most_sets);
  friend Downsets linear_downsets(const Dag& dag, const std::vector<double>& output_bytes, LinearOrders orders);
  friend Downsets prefix_downsets(const Dag& dag);
  friend Downsets uncut_downsets(int num_nodes);

  void push(const std::vector<uint64_t>& set);

  int num_nodes_, num_words_;
  size_t size_ = 0;
  bool complete_ = false;
  std::vector<uint64_t> words_;
};

// Which layers of a graph make a stage, and how many devices it gets: exact where the graph has few downsets.

struct StageProblem {
  struct Layer {
    double forward_seconds = 0, backward_seconds = 0;
    double weight_bytes = 0, stash_bytes = 0;
    double transfer_seconds = 0;  ///< Transfer of its output over the link.
  };
  std::vector<Layer> layers;
  std::vector<std::pair<int, int>> edges;  ///< (from, to), without a cycle.
  int num_devices = 1;
  double memory_bytes = 0;    ///< Limit per device; infinite: none.
  int num_micro_batches = 0;  ///< Per synchronous step; 0: steady state, where the slowest stage is the objective.
  bool may_pipeline = true, may_replicate = true;
};

struct StageAnswer {
  struct Stage {
    std::vector<int> layers;
    int num_devices = 1;
    double load_seconds = 0;
  };
  std::vector<Stage> stages;  ///< In pipeline order.
  double objective = 0, lower_bound = 0;
  const char* bound_by = "search";
  bool optimal = false;
};

/// nullopt where no plan fits in memory. Error(kBadInput) for a graph with a cycle.
std::optional<StageAnswer> search_stages(const StageProblem& problem, double search_seconds);

}  // namespace cohort

// Places parallel branches on ranks.
//
// Steps:
//   1. Layers that can only run one after the other (the only reader of an only input) become one segment: the nodes of what follows.
//   2. A placement of segments is rated by list scheduling: in forward, segments take their turn by the longest way to the end; each starts
//      when its rank is free and its values are there; a value from another rank takes the link's latency and its bytes' time. Backward is
//      the same on the reversed graph, after forward. Links have no queues and cost the ranks nothing.
//   3. Start from the better of one rank and earliest-finish placement (HEFT: Topcuoglu, Hariri, Wu 2002, "Performance-effective and
//      low-complexity task scheduling for heterogeneous computing", section 4); move single segments as long as that helps.
//   4. Branch and bound over all placements, in scheduling order, ranks named in order of first use; a partial one is left when its forward
//      time so far, the longest way on and the longest way back are no better than the best. At most kMostSteps, else step 3's is the
//      result.
//   5. Stages are runs of layers of one segment, rated like segments; neighbours on one rank become one stage where the estimate does not
//      rise: a stage waits for all its inputs and sends when it is done. Should one rank be no slower, it is the answer.

#include "cohort/plan/cut/split.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {
namespace {

constexpr int kMostSteps = 500'000;  // Below a tenth of a second.

struct Edge {
  int to;
  double seconds;  // Transfer between ranks.
};

/// One pass through the graph: forward, or backward with all edges reversed.
struct Pass {
  std::vector<double> seconds;            // Seconds per node.
  std::vector<std::vector<Edge>> before;  // Inputs of a node.
  std::vector<double> way;                // Longest path from the start of a node to the end, on one rank.
  std::vector<int> order;                 // Sorted by longest path; nodes come after their inputs.

  explicit Pass(int num_nodes) : seconds(num_nodes), before(num_nodes), way(num_nodes) {}

  /// Called after the members above are filled; `topological` orders the nodes.
  void find_order(const std::vector<int>& topological) {
    way = seconds;
    for (auto node = topological.rbegin(); node != topological.rend(); ++node)
      for (const Edge& edge : before[*node]) way[edge.to] = std::max(way[edge.to], seconds[edge.to] + way[*node]);
    order = topological;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return way[a] > way[b]; });
  }
  double critical_seconds() const { return *std::max_element(way.begin(), way.end()); }

  double arrival(int node, int rank, const std::vector<int>& ranks, const std::vector<double>& ends) const {
    double latest = 0;
    for (const Edge& edge : before[node]) latest = std::max(latest, ends[edge.to] + (ranks[edge.to] == rank ? 0 : edge.seconds));
    return latest;
  }

  double run(const std::vector<int>& ranks, int num_ranks) const {
    std::vector<double> ends(seconds.size()), free_at(num_ranks);
    for (const int node : order) {
      const double start = std::max(free_at[ranks[node]], arrival(node, ranks[node], ranks, ends));
      ends[node] = free_at[ranks[node]] = start + seconds[node];
    }
    return *std::max_element(ends.begin(), ends.end());
  }
};

/// Runs of layers and the values between them.
struct Graph {
  Pass forward, backward;

  /// `node_of` is the node of each layer. Values flow to higher node numbers.
  Graph(const Profile& profile, const std::vector<int>& node_of, int num_nodes) : forward(num_nodes), backward(num_nodes) {
    for (size_t layer = 0; layer < node_of.size(); ++layer) {
      const LayerProfile& cost = profile.layers[layer];
      forward.seconds[node_of[layer]] += cost.forward_seconds;
      backward.seconds[node_of[layer]] += cost.backward_input_seconds + cost.backward_weight_seconds;
    }
    std::map<std::pair<int, int>, double> seconds;  // Per edge; a value is sent once to each node.
    std::vector<std::pair<int, int>> values;
    for (const auto& [from, to] : profile.edges)
      if (from >= 0 && node_of[from] != node_of[to]) values.push_back({from, node_of[to]});
    sort_unique(values);
    for (const auto& [layer, to] : values) seconds[{node_of[layer], to}] += profile.transfer_seconds(profile.layers[layer].output_bytes);
    for (const auto& [edge, its_seconds] : seconds) {
      forward.before[edge.second].push_back({edge.first, its_seconds});
      backward.before[edge.first].push_back({edge.second, its_seconds});
    }
    std::vector<int> upward(num_nodes);
    std::iota(upward.begin(), upward.end(), 0);
    forward.find_order(upward);
    backward.find_order({upward.rbegin(), upward.rend()});
  }

  int num_nodes() const { return static_cast<int>(forward.seconds.size()); }
  double run(const std::vector<int>& ranks, int num_ranks) const { return forward.run(ranks, num_ranks) + backward.run(ranks, num_ranks); }
};

/// Inputs and readers of each layer, each once; -1 is the model's input.
struct Neighbours {
  std::vector<std::vector<int>> inputs, readers;

  explicit Neighbours(const Profile& profile) : inputs(profile.layers.size()), readers(profile.layers.size()) {
    for (const auto& [from, to] : profile.edges) {
      if (std::find(inputs[to].begin(), inputs[to].end(), from) != inputs[to].end()) continue;
      inputs[to].push_back(from);
      if (from >= 0) readers[from].push_back(to);
    }
  }
  bool continues(int layer) const { return inputs[layer].size() == 1 && inputs[layer][0] >= 0 && readers[inputs[layer][0]].size() == 1; }
};

class PlacementSearch {
 public:
  PlacementSearch(const Graph& graph, int num_ranks)
      : graph_(graph),
        num_ranks_(num_ranks),
        best_(graph.num_nodes(), 0),
        ranks_(graph.num_nodes()),
        ends_(graph.num_nodes()),
        free_at_(num_ranks),
        backward_critical_(graph.backward.critical_seconds()) {
    best_seconds_ = graph.run(best_, num_ranks);
  }

  void run() {
    climb(best_);
    climb(earliest_finish());
    walk(0, 0);
  }
  const std::vector<int>& ranks() const { return best_; }
  bool exact() const { return num_steps_ <= kMostSteps; }

 private:
  bool take_if_better(const std::vector<int>& ranks) {
    const double seconds = graph_.run(ranks, num_ranks_);
    if (seconds >= best_seconds_ * (1 - 1e-12)) return false;  // A smaller gain is rounding.
    best_seconds_ = seconds;
    best_ = ranks;
    return true;
  }

  std::vector<int> earliest_finish() const {
    const Pass& pass = graph_.forward;
    std::vector<int> ranks(graph_.num_nodes());
    std::vector<double> ends(graph_.num_nodes()), free_at(num_ranks_);
    for (const int node : pass.order) {
      double earliest = std::numeric_limits<double>::infinity();
      for (int rank = 0; rank < num_ranks_; ++rank) {
        const double start = std::max(free_at[rank], pass.arrival(node, rank, ranks, ends));
        if (start < earliest) earliest = start, ranks[node] = rank;
      }
      ends[node] = free_at[ranks[node]] = earliest + pass.seconds[node];
    }
    return ranks;
  }

  void climb(std::vector<int> ranks) {
    double seconds = graph_.run(ranks, num_ranks_);
    take_if_better(ranks);
    int num_tries = 0;
    for (bool improved = true; improved && num_tries < kMostSteps / graph_.num_nodes();) {
      improved = false;
      for (int& rank : ranks) {
        const int before = rank;
        int best_rank = rank;
        for (rank = 0; rank < num_ranks_; ++rank, ++num_tries)
          if (const double tried = graph_.run(ranks, num_ranks_); tried < seconds) seconds = tried, best_rank = rank;
        rank = best_rank;
        improved |= best_rank != before;
      }
      take_if_better(ranks);
    }
  }

  /// Places the node at `position` of the scheduling order and all after it; ranks below `num_used` have something already.
  void walk(size_t position, int num_used) {
    const Pass& pass = graph_.forward;
    if (position == pass.order.size()) {
      num_steps_ += graph_.num_nodes();
      take_if_better(ranks_);
      return;
    }
    const int node = pass.order[position];
    for (int rank = 0; rank < std::min(num_used + 1, num_ranks_); ++rank) {
      if (++num_steps_ > kMostSteps) return;
      const double start = std::max(free_at_[rank], pass.arrival(node, rank, ranks_, ends_));
      if (start + pass.way[node] + backward_critical_ >= best_seconds_) continue;
      const double free_before = free_at_[rank];
      ranks_[node] = rank;
      ends_[node] = free_at_[rank] = start + pass.seconds[node];
      walk(position + 1, std::max(num_used, rank + 1));
      free_at_[rank] = free_before;
    }
  }

  const Graph& graph_;
  const int num_ranks_;
  int num_steps_ = 0;
  std::vector<int> best_, ranks_;
  double best_seconds_;
  std::vector<double> ends_, free_at_;
  const double backward_critical_;
};

/// Renumbers ranks in order of first use.
void renumber(std::vector<int>& ranks) {
  std::map<int, int> names;
  for (int& rank : ranks) rank = names.emplace(rank, static_cast<int>(names.size())).first->second;
}

/// Runs of layers, each on the rank of its first layer, with their estimate.
BranchPlacement stages_of(const Profile& profile, std::vector<int> first_layer, const std::vector<int>& rank_of_layer) {
  BranchPlacement placement{.first_layer = std::move(first_layer)};
  for (const int first : placement.first_layer) placement.rank.push_back(rank_of_layer[first]);
  renumber(placement.rank);
  const std::vector<int> stage_of = stage_of_layers(placement.first_layer, profile.layers.size());
  for (const auto& [from, to] : profile.edges)
    if (from >= 0 && stage_of[from] != stage_of[to]) placement.edges.push_back({stage_of[from], stage_of[to]});
  sort_unique(placement.edges);
  placement.seconds = Graph(profile, stage_of, placement.num_stages()).run(placement.rank, placement.num_stages());
  return placement;
}

/// Merges stages as long as that costs no time.
BranchPlacement merged_stages(const Profile& profile, const std::vector<int>& segment_of, const std::vector<int>& rank_of_layer) {
  std::vector<int> first_layer;
  for (int layer = 0; layer < static_cast<int>(segment_of.size()); ++layer)
    if (layer == 0 || segment_of[layer] != segment_of[layer - 1]) first_layer.push_back(layer);
  BranchPlacement placement = stages_of(profile, first_layer, rank_of_layer);
  for (size_t stage = first_layer.size(); --stage > 0;) {
    if (rank_of_layer[first_layer[stage]] != rank_of_layer[first_layer[stage - 1]]) continue;
    std::vector<int> fewer = placement.first_layer;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(stage));
    BranchPlacement merged = stages_of(profile, std::move(fewer), rank_of_layer);
    if (merged.seconds <= placement.seconds * (1 + 1e-12)) placement = std::move(merged);
  }
  return placement;
}

}  // namespace

BranchPlacement place_branches(const Profile& profile, int num_ranks) {
  check_profile(profile);
  if (num_ranks < 1) fail(ErrorCode::kBadInput, "branches: ", num_ranks, " ranks");
  const Neighbours neighbours(profile);
  std::vector<int> segment_of;
  int num_segments = 0;
  for (int layer = 0; layer < static_cast<int>(profile.layers.size()); ++layer)
    segment_of.push_back(neighbours.continues(layer) ? segment_of[neighbours.inputs[layer][0]] : num_segments++);

  const Graph graph(profile, segment_of, num_segments);
  PlacementSearch search(graph, std::min(num_ranks, num_segments));
  search.run();
  std::vector<int> rank_of_layer;
  for (const int segment : segment_of) rank_of_layer.push_back(search.ranks()[segment]);

  BranchPlacement placement = merged_stages(profile, segment_of, rank_of_layer);
  const BranchPlacement one_rank = stages_of(profile, {0}, rank_of_layer);
  if (placement.seconds >= one_rank.seconds) placement = one_rank;
  placement.one_rank_seconds = one_rank.seconds;
  placement.exact = search.exact();
  return placement;
}

}  // namespace cohort

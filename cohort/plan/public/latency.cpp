// One sample through a plan: how long it takes.
//
// A node on a CPU core (there are as many as needed) starts when its inputs are there. Nodes of an accelerator run in pieces: a piece
// starts when all that it reads from outside is there, takes that in, works, and hands out what is read outside. An accelerator whose
// nodes are not contiguous has several pieces: a node's piece is how often a path to it has entered the accelerator, at most.
// Cost: O(devices used x edges). Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020
// (the repository's -computeLatency, in words of its SOURCE.md).

#include <algorithm>
#include <limits>

#include "cohort/plan/public/latency.h"

namespace cohort {

double LatencyClock::time(const Placement& placement) {
  find_blocks(placement);
  return run();
}

/// The piece of each node; a CPU node is a block of its own.
void LatencyClock::find_blocks(const Placement& placement) {
  members_.clear();
  std::vector<int> used;
  for (const PartitionGraph::Node& node : graph_.nodes)
    if (const int part = placement[node.group]; !on_cpu(part)) used.push_back(part);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (const int part : used) find_pieces(placement, part);
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    if (on_cpu(placement[graph_.nodes[n].group])) {
      block_of_[n] = static_cast<int>(members_.size());
      members_.push_back({static_cast<int>(n)});
    }
  num_accelerator_blocks_ = members_.size();
  for (size_t b = 0; b < members_.size(); ++b)
    if (on_cpu(placement[graph_.nodes[members_[b].front()].group])) {
      num_accelerator_blocks_ = b;
      break;
    }
}

void LatencyClock::find_pieces(const Placement& placement, int part) {
  const size_t first = members_.size();
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const bool mine = placement[graph_.nodes[n].group] == part;
    int depth = mine ? 1 : 0;
    for (const int input : graph_.nodes[n].inputs)
      depth = std::max(depth, depth_[input] + (mine && placement[graph_.nodes[input].group] != part));
    depth_[n] = depth;
    if (!mine) continue;
    const size_t block = first + static_cast<size_t>(depth) - 1;
    if (members_.size() <= block) members_.resize(block + 1);
    members_[block].push_back(static_cast<int>(n));
    block_of_[n] = static_cast<int>(block);
  }
  // Depths may leave one out; an empty block would have no first node.
  for (size_t b = first; b < members_.size();) {
    if (!members_[b].empty()) {
      for (const int n : members_[b]) block_of_[n] = static_cast<int>(b);
      ++b;
    } else {
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(b));
    }
  }
}

/// When the last block ends. Blocks are taken as soon as all that they read is done.
double LatencyClock::run() {
  missing_.assign(members_.size(), 0);
  done_.assign(members_.size(), 0);
  ready_.clear();
  for (size_t b = 0; b < members_.size(); ++b)
    for (const int n : members_[b])
      for (const int input : graph_.nodes[n].inputs) missing_[b] += block_of_[input] != static_cast<int>(b);
  for (size_t b = 0; b < members_.size(); ++b)
    if (missing_[b] == 0) ready_.push_back(static_cast<int>(b));
  double last = 0;
  size_t next = 0;
  for (; next < ready_.size(); ++next) {
    const int b = ready_[next];
    last = std::max(last, done_[b] = finish(b));
    for (const int n : members_[b])
      for (const int reader : graph_.nodes[n].readers)
        if (block_of_[reader] != b && --missing_[block_of_[reader]] == 0) ready_.push_back(block_of_[reader]);
  }
  // Blocks that wait for each other: cannot be, as depths grow along every path between two pieces of one device; but two devices may.
  return next == members_.size() ? last : std::numeric_limits<double>::infinity();
}

double LatencyClock::finish(int b) {
  const bool cpu = static_cast<size_t>(b) >= num_accelerator_blocks_;
  double begin = 0, time = 0;
  inputs_.clear();
  for (const int n : members_[b]) {
    const PartitionGraph::Node& node = graph_.nodes[n];
    time += cpu ? node.cpu_time : node.accelerator_time;
    for (const int input : node.inputs)
      if (block_of_[input] != b) {
        begin = std::max(begin, done_[block_of_[input]]);
        inputs_.push_back(input);
      }
    const bool read_outside = !cpu && std::any_of(node.readers.begin(), node.readers.end(), [&](int r) { return block_of_[r] != b; });
    if (read_outside) time += node.cost;
  }
  if (cpu) return begin + time;
  std::sort(inputs_.begin(), inputs_.end());
  inputs_.erase(std::unique(inputs_.begin(), inputs_.end()), inputs_.end());
  for (const int input : inputs_) time += graph_.nodes[input].cost;
  return begin + time;
}

}  // namespace cohort

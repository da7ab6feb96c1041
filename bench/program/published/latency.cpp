// One sample through a plan: how long it takes, and the search for a plan in which it takes least.
//
// A node on a CPU core (there are as many as needed) starts when its inputs are there. Nodes of an accelerator run in pieces: a piece
// starts when all that it reads from outside is there, takes that in, works, and hands out what is read outside. An accelerator whose
// nodes are not contiguous has several pieces: a node's piece is how often a path to it has entered the accelerator, at most.
// Cost: O(devices used x edges). Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020
// (the repository's -computeLatency, in words of its SOURCE.md).

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "bench/program/published/dnn_partitioning.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

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

// The search for a plan in which one sample takes least, and a bound.
//
//   1. A first plan: the cut of the order into runs with the least sum of times, each run on an accelerator of its own or on CPU cores, by
//      dynamic programming over (place, accelerators used). The sum is above the latency, which sees what runs at once.
//   2. Annealing from it with the latency itself. A step moves one group, a block of groups that expensive outputs join
//      (at one of several prices), or a connected piece, to a neighbour's device, an empty one, or CPU cores. Memory is a hard limit.
//   3. Bound: the longest path, each node with the smaller of its two times. It knows neither transfers nor memory.
// Steps are counted, not seconds. Cost of a step: a timing, 5 to 100 microseconds. The paper's program for this (Tarnawski et al., NeurIPS
// 2020, section 6) is exact and needs a commercial solver; ours is a heuristic for files where the greedy choice is far off.

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Step 1.
class SumCut {
 public:
  explicit SumCut(const LoadProblem& problem) : problem_(problem), n_(problem.items.size()), nets_of_(n_) {
    for (size_t n = 0; n < problem.nets.size(); ++n)
      for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
    num_runs_ = std::min<size_t>(static_cast<size_t>(problem.num_accelerators), 256);
  }

  Placement run() {
    best_.assign(num_runs_ + 1, std::vector<double>(n_ + 1, kNever));
    from_.assign(num_runs_ + 1, std::vector<size_t>(n_ + 1, 0));
    on_cpu_.assign(num_runs_ + 1, std::vector<bool>(n_ + 1, false));
    best_[0][0] = 0;
    for (size_t begin = 0; begin < n_; ++begin) grow_from(begin);
    size_t d = 0;
    for (size_t other = 1; other <= num_runs_; ++other)
      if (best_[other][n_] < best_[d][n_]) d = other;
    Placement placement(n_, problem_.num_accelerators);
    for (size_t end = n_; end > 0;) {
      const size_t begin = from_[d][end];
      if (!on_cpu_[d][end]) {
        for (size_t i = begin; i < end; ++i) placement[i] = static_cast<int>(d) - 1;
        --d;
      }
      end = begin;
    }
    return placement;
  }

 private:
  void relax(size_t d, size_t begin, size_t end, double value, bool on_cpu) {
    if (value < best_[d][end]) best_[d][end] = value, from_[d][end] = begin, on_cpu_[d][end] = on_cpu;
  }

  void grow_from(size_t begin) {
    for (size_t d = 0; d <= num_runs_; ++d) relax(d, begin, begin + 1, best_[d][begin] + problem_.items[begin].cpu_work, true);
    std::vector<int> inside(problem_.nets.size());
    double time = 0, bytes = 0;
    for (size_t end = begin; end < n_; ++end) {
      time += problem_.items[end].work;
      bytes += problem_.items[end].bytes;
      if (bytes > problem_.memory_bytes || !std::isfinite(time)) return;
      for (const int n : nets_of_[end]) {
        const LoadProblem::Net& net = problem_.nets[n];
        if (++inside[n] == 1) time += net.cost;
        if (inside[n] == static_cast<int>(net.pins.size())) time -= net.cost;
      }
      for (size_t d = 1; d <= num_runs_; ++d) relax(d, begin, end + 1, best_[d - 1][begin] + time, false);
    }
  }

  const LoadProblem& problem_;
  size_t n_, num_runs_ = 0;
  std::vector<std::vector<int>> nets_of_;
  std::vector<std::vector<double>> best_;  ///< Indexed by accelerators used and groups done.
  std::vector<std::vector<size_t>> from_;
  std::vector<std::vector<bool>> on_cpu_;
};

/// Step 2.
class LatencyAnnealer {
 public:
  LatencyAnnealer(const PartitionGraph& graph, const LoadProblem& problem, Placement start, const InstanceOptions& options)
      : graph_(graph),
        problem_(problem),
        clock_(graph),
        deadline_(steady_seconds() + options.search_seconds),
        random_(options.search_seed),
        now_(std::move(start)),
        nets_of_(now_.size()) {
    for (size_t n = 0; n < problem.nets.size(); ++n)
      for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
    bytes_.resize(static_cast<size_t>(graph.num_accelerators) + 1);
    for (size_t i = 0; i < now_.size(); ++i) bytes_[now_[i]] += problem.items[i].bytes;
    join_blocks();
    best_ = now_;
    time_ = best_time_ = clock_.time(now_);
  }

  Placement run(double bound) {
    const double nodes = static_cast<double>(graph_.nodes.size());
    const auto steps = static_cast<int64_t>(std::clamp(1.2e6 / (std::min(graph_.num_accelerators, 40) + 6.0), 1000.0, 200'000.0));
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds; ++round) {
      restart();
      const double hot = (round % 2 == 0 ? 0.02 : 0.1) * best_time_, cold = 1e-4 * best_time_;
      for (int64_t step = 0; step < steps / kRounds; ++step) {
        if (step % 64 == 0) {
          if (steady_seconds() > deadline_ || best_time_ <= bound * (1 + 1e-9) || nodes == 1) return best_;
          temperature_ = hot * std::pow(cold / hot, static_cast<double>(step * kRounds) / static_cast<double>(steps));
        }
        propose();
        if (!moves_.empty()) settle();
      }
    }
    return best_;
  }

 private:
  struct Move {
    int group, from;
  };

  int draw(size_t below) { return static_cast<int>((random_() >> 11) % below); }
  double chance() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  void join_blocks() {
    std::vector<double> costs;
    for (const LoadProblem::Net& net : problem_.nets) costs.push_back(net.cost);
    std::sort(costs.begin(), costs.end());
    for (const double share : {0.2, 0.4, 0.6, 0.8, 0.9, 0.97}) {
      if (costs.empty()) return;
      const double price = costs[static_cast<size_t>(share * static_cast<double>(costs.size() - 1))];
      const Contraction joined = contract_heavy(problem_, price, kNever);
      std::vector<std::vector<int>> blocks(joined.problem.items.size());
      for (size_t i = 0; i < joined.item_of.size(); ++i) blocks[joined.item_of[i]].push_back(static_cast<int>(i));
      block_of_.push_back(joined.item_of);
      blocks_.push_back(std::move(blocks));
    }
  }

  void restart() {
    now_ = best_;
    time_ = best_time_;
    std::fill(bytes_.begin(), bytes_.end(), 0);
    for (size_t i = 0; i < now_.size(); ++i) bytes_[now_[i]] += problem_.items[i].bytes;
  }

  void put(int group, int to) {
    bytes_[now_[group]] -= problem_.items[group].bytes;
    bytes_[to] += problem_.items[group].bytes;
    now_[group] = to;
  }

  void move(int group, int to) {
    if (now_[group] == to || (to < graph_.num_accelerators && !std::isfinite(problem_.items[group].work))) return;
    moves_.push_back({group, now_[group]});
    put(group, to);
  }

  bool memory_holds() const {
    for (const Move& move : moves_)
      if (const int part = now_[move.group]; part < graph_.num_accelerators && bytes_[part] > problem_.memory_bytes) return false;
    return true;
  }

  void settle() {
    const double time = memory_holds() ? clock_.time(now_) : kNever;
    if (!(time <= time_) && !(chance() < std::exp((time_ - time) / temperature_))) {
      for (size_t i = moves_.size(); i > 0; --i) put(moves_[i - 1].group, moves_[i - 1].from);
      return;
    }
    time_ = time;
    if (time < best_time_ * (1 - 1e-12)) best_time_ = time, best_ = now_;
  }

  int neighbour(int group) {
    const std::vector<int>& nets = nets_of_[group];
    if (nets.empty()) return group;
    const std::vector<int>& pins = problem_.nets[nets[draw(nets.size())]].pins;
    return pins[draw(pins.size())];
  }

  int target(int group) {
    if (const int kind = draw(8); kind < 5)
      if (const int part = now_[neighbour(group)]; part != now_[group]) return part;
    return draw(4) == 0 ? graph_.num_accelerators : draw(static_cast<size_t>(graph_.num_accelerators) + 1);
  }

  void propose() {
    moves_.clear();
    const int group = draw(now_.size()), kind = draw(4);
    if (kind == 0) return move(group, target(group));
    if (kind == 1 && !blocks_.empty()) return move_block(group);
    move_piece(group);
  }

  void move_block(int group) {
    const int level = draw(blocks_.size());
    const std::vector<int>& block = blocks_[level][block_of_[level][group]];
    int to = target(group);
    for (size_t tries = 0; tries < 4 && to == now_[group]; ++tries) to = target(block[draw(block.size())]);
    for (const int member : block) move(member, to);
  }

  void move_piece(int group) {
    const int from = now_[group], to = target(group);
    if (from == to) return;
    const size_t most = size_t{1} << (1 + draw(5));
    move(group, to);
    for (size_t tries = 0; moves_.size() < most && !moves_.empty() && tries < 3 * most; ++tries)
      if (const int next = neighbour(moves_[draw(moves_.size())].group); now_[next] == from) move(next, to);
  }

  const PartitionGraph& graph_;
  const LoadProblem& problem_;
  LatencyClock clock_;
  double deadline_;
  std::mt19937_64 random_;
  Placement now_, best_;
  std::vector<std::vector<int>> nets_of_;
  std::vector<double> bytes_;
  std::vector<std::vector<int>> block_of_;             ///< Indexed by price and group.
  std::vector<std::vector<std::vector<int>>> blocks_;  ///< Indexed by price and block.
  double time_ = 0, best_time_ = 0, temperature_ = 0;
  std::vector<Move> moves_;
};

double longest_path(const PartitionGraph& graph) {
  std::vector<double> end(graph.nodes.size());
  for (size_t n = 0; n < end.size(); ++n) {
    const PartitionGraph::Node& node = graph.nodes[n];
    for (const int input : node.inputs) end[n] = std::max(end[n], end[input]);
    const bool fits = node.on_accelerator && node.bytes <= graph.memory_bytes;
    end[n] += fits ? std::min(node.accelerator_time, node.cpu_time) : node.cpu_time;
  }
  return *std::max_element(end.begin(), end.end());
}

}  // namespace

InstanceAnswer search_latency(const PartitionGraph& graph, const InstanceOptions& options) {
  LoadProblem problem = load_problem_of(graph);
  problem.num_cpus = 1;  // There are as many as needed, so the plan lists them as one.
  const double bound = longest_path(graph);
  const Placement start = problem.items.size() <= 5000 ? SumCut(problem).run() : Placement(problem.items.size(), graph.num_accelerators);
  const Placement all_on_cpu(problem.items.size(), graph.num_accelerators);
  LatencyClock clock(graph);
  const bool cut_is_better = clock.time(start) < clock.time(all_on_cpu);
  const Placement found = LatencyAnnealer(graph, problem, cut_is_better ? start : all_on_cpu, options).run(bound);
  const double objective = clock.time(found);
  const bool optimal = objective - bound <= 1e-9 * objective;
  return {.objective = objective,
          .lower_bound = std::min(bound, objective),
          .bound_by = "critical path",
          .optimal = optimal,
          .plan = partition_plan_json(graph, found)};
}

}  // namespace cohort

// Enumerates the downsets of a graph.
//
// All of them: the nodes are numbered along the edges, so taking away the node with the highest number from a downset leaves a downset.
// Hence each is made exactly once, from that smaller one, by adding a node above all of its nodes whose predecessors are in it. A queue
// gives them by size. No table of sets seen is needed. Cost: (sets) x (nodes + edges), memory (sets) x (nodes) bits.
//
// Some of them, for graphs with too many: prefixes of topological orders. The order that goes depth first finishes a branch before it
// begins the next, the one that goes breadth first advances all branches together, both with ties broken from either side; the greedy one
// takes the node after which the outputs still needed are smallest.
//
// Source: pipelines as chains of downsets are those of Tarnawski et al. 2020, "Efficient algorithms for device placement of DNN graph
// operators", section 5 (theirs are found by search with a table); linear orders as a fallback: their section 5.2. The enumeration by
// highest node is ours.
#include "cohort/plan/cut/downsets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;

using Words = std::vector<uint64_t>;

bool has(const Words& set, int node) { return set[node / 64] >> (node % 64) & 1; }
void add(Words& set, int node) { set[node / 64] |= uint64_t{1} << (node % 64); }

bool is_ready(const Dag& dag, const Words& set, int node) {
  return std::all_of(dag.before[node].begin(), dag.before[node].end(), [&](int before) { return has(set, before); });
}

int highest_node(const Words& set) {
  for (int word = static_cast<int>(set.size()) - 1; word >= 0; --word)
    if (set[word]) return word * 64 + 63 - __builtin_clzll(set[word]);
  return -1;
}

/// A topological order: `choose` returns an index in `ready`, the nodes whose inputs are done, in the order in which they became ready.
template <typename Choose>
std::vector<int> linear_order(const Dag& dag, const Choose& choose) {
  std::vector<int> missing, ready, order;
  for (int node = 0; node < dag.num_nodes(); ++node) {
    missing.push_back(static_cast<int>(dag.before[node].size()));
    if (missing.back() == 0) ready.push_back(node);
  }
  while (!ready.empty()) {
    const auto at = ready.begin() + choose(ready);
    const int node = *at;
    ready.erase(at);
    order.push_back(node);
    for (const int after : dag.after[node])
      if (--missing[after] == 0) ready.push_back(after);
  }
  return order;
}

std::ptrdiff_t lowest(const std::vector<int>& ready) { return std::min_element(ready.begin(), ready.end()) - ready.begin(); }

/// Takes the node that adds the fewest bytes of outputs still needed.
std::vector<int> greedy_order(const Dag& dag, const std::vector<double>& output_bytes) {
  std::vector<int> readers_left;
  for (const std::vector<int>& after : dag.after) readers_left.push_back(static_cast<int>(after.size()));
  const auto growth = [&](int node) {
    double bytes = dag.after[node].empty() ? 0 : output_bytes[node];
    for (const int before : dag.before[node])
      if (readers_left[before] == 1) bytes -= output_bytes[before];
    return bytes;
  };
  return linear_order(dag, [&](const std::vector<int>& ready) {
    size_t best = ready.size() - 1;
    for (size_t i = ready.size() - 1; i-- > 0;)
      if (growth(ready[i]) < growth(ready[best])) best = i;
    for (const int before : dag.before[ready[best]]) --readers_left[before];
    return best;
  });
}

std::vector<std::vector<int>> some_orders(const Dag& dag, const std::vector<double>& output_bytes) {
  const auto first = [](const std::vector<int>&) { return size_t{0}; };
  const auto last = [](const std::vector<int>& ready) { return ready.size() - 1; };
  Dag turned = dag;  // Ties are broken from the other side.
  for (std::vector<int>& after : turned.after) std::reverse(after.begin(), after.end());
  return {greedy_order(dag, output_bytes), linear_order(dag, last),     linear_order(turned, last),
          linear_order(dag, first),        linear_order(turned, first), linear_order(dag, lowest)};
}

}  // namespace

OrderedDag order_dag(int num_nodes, const std::vector<std::pair<int, int>>& edges, NextNode next) {
  Dag given{std::vector<std::vector<int>>(num_nodes), std::vector<std::vector<int>>(num_nodes)};
  for (const auto& [from, to] : edges) {
    given.before[to].push_back(from);
    given.after[from].push_back(to);
  }
  OrderedDag result;
  result.order = next == NextNode::kLowest ? linear_order(given, lowest)
                                           : linear_order(given, [](const std::vector<int>& ready) { return ready.size() - 1; });
  if (static_cast<int>(result.order.size()) < num_nodes) return result;
  std::vector<int> number(num_nodes);
  for (int i = 0; i < num_nodes; ++i) number[result.order[i]] = i;
  result.dag = {std::vector<std::vector<int>>(num_nodes), std::vector<std::vector<int>>(num_nodes)};
  for (const auto& [from, to] : edges) {
    result.dag.before[number[to]].push_back(number[from]);
    result.dag.after[number[from]].push_back(number[to]);
  }
  return result;
}

bool Downsets::is_subset(size_t small, size_t large) const {
  const uint64_t *a = words(small), *b = words(large);
  for (int word = 0; word < num_words_; ++word)
    if (a[word] & ~b[word]) return false;
  return true;
}

std::vector<int> Downsets::between(size_t small, size_t large) const {
  std::vector<int> nodes;
  for (int word = 0; word < num_words_; ++word)
    for (uint64_t bits = words(large)[word] & ~words(small)[word]; bits; bits &= bits - 1)
      nodes.push_back(word * 64 + __builtin_ctzll(bits));
  return nodes;
}

std::vector<double> Downsets::sums(const std::vector<double>& weights) const {
  std::vector<double> result(size_);
  for (size_t set = 0; set < size_; ++set)
    for (int word = 0; word < num_words_; ++word)
      for (uint64_t bits = words(set)[word]; bits; bits &= bits - 1) result[set] += weights[word * 64 + __builtin_ctzll(bits)];
  return result;
}

void Downsets::push(const Words& set) {
  words_.insert(words_.end(), set.begin(), set.end());
  ++size_;
}

Downsets all_downsets(const Dag& dag, size_t most_sets) {
  Downsets sets(dag.num_nodes());
  const size_t most = std::min(most_sets, kMostBytes / 8 / std::max(1, sets.num_words_));
  Words set(sets.num_words_);
  sets.push(set);
  for (size_t at = 0; at < sets.size(); ++at) {
    set.assign(sets.words(at), sets.words(at) + sets.num_words_);
    for (int node = highest_node(set) + 1; node < dag.num_nodes(); ++node) {
      if (!is_ready(dag, set, node)) continue;
      if (sets.size() >= most) return Downsets(dag.num_nodes());
      add(set, node);
      sets.push(set);
      set[node / 64] &= ~(uint64_t{1} << (node % 64));
    }
  }
  sets.complete_ = true;
  return sets;
}

Downsets linear_downsets(const Dag& dag, const std::vector<double>& output_bytes, LinearOrders wanted) {
  Downsets sets(dag.num_nodes());
  std::vector<std::vector<int>> orders = some_orders(dag, output_bytes);
  if (wanted == LinearOrders::kOne) orders.resize(1);
  std::vector<Words> prefixes(orders.size(), Words(sets.num_words_));
  sets.push(prefixes[0]);
  for (int taken = 0; taken < dag.num_nodes(); ++taken) {
    std::set<Words> seen;
    for (size_t i = 0; i < orders.size(); ++i) {
      add(prefixes[i], orders[i][taken]);
      if (seen.insert(prefixes[i]).second) sets.push(prefixes[i]);
    }
  }
  return sets;
}

Downsets prefix_downsets(const Dag& dag) {
  Downsets sets(dag.num_nodes());
  Words set(sets.num_words_);
  sets.push(set);
  for (int node = 0; node < dag.num_nodes(); ++node) {
    add(set, node);
    sets.push(set);
  }
  return sets;
}

Downsets uncut_downsets(int num_nodes) {
  Downsets sets(num_nodes);
  Words set(sets.num_words_);
  sets.push(set);
  for (int node = 0; node < num_nodes; ++node) add(set, node);
  sets.push(set);
  return sets;
}

// Stages of a pipeline over a graph of layers, with replicas: dynamic programming over downsets.
//
// A downset is a set of layers with all their inputs. Stages in the order of a pipeline are the steps of a chain of downsets from none to
// all, so the best plan is a shortest path in (downset, stages behind it, devices behind it). It is built from the end, because how many
// micro-batches a stage keeps under 1F1B depends on how many stages are behind it: min(micro-batches, stages behind and itself).
//
//   load of a stage = (forward + backward of its layers + the transfer of each value that crosses into it or out of it, once) / replicas
//   steady state    = the largest load
//   step            = sum of loads + (micro-batches - 1) x largest load: micro-batches one after the other through a line of stations
//   memory          = weights + stash x micro-batches kept (one in steady state), on each replica
//
// A state keeps the Pareto front of (largest load, sum of loads). Both objectives are monotone in both, so the answer is exact. Beyond
// `kMostPairs` pairs of downsets only those of one topological order are used, and the bound is the area. Cost: pairs of downsets x
// devices^2 (x stages where stashes count). Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
// NeurIPS 2020, section 4, and "Piper", NeurIPS 2021, for replicas; the sum of loads and the micro-batches kept are ours.

namespace {

constexpr double kMostPairs = 1e6, kMostWork = 4e8;
constexpr size_t kMostFront = 64;

struct Part {
  double seconds = 0, weight_bytes = 0, stash_bytes = 0;
};

/// A plan of the layers after a downset.
struct Option {
  double largest = 0, sum = 0;
  int end = 0, replicas = 0, rest = 0;  ///< First stage: its end, its devices, and the option that continues.
};

class StageSearch {
 public:
  StageSearch(const StageProblem& problem, double search_seconds)
      : problem_(problem),
        n_(problem.layers.size()),
        deadline_(steady_seconds() + search_seconds),
        readers_(n_),
        ordered_(order_dag(static_cast<int>(n_), problem.edges, NextNode::kLowest)),
        number_(n_),
        downsets_(find_downsets()) {
    for (const auto& [from, to] : problem.edges) readers_[from].push_back(to);
    for (size_t i = 0; i < n_; ++i) number_[ordered_.order[i]] = static_cast<int>(i);
    const double devices = problem.num_devices;
    const bool stash_counts = problem.num_micro_batches > 1 && !std::isinf(problem.memory_bytes);
    num_depths_ = stash_counts ? std::min<size_t>(problem.num_devices, n_) : 1;
    const double pairs = static_cast<double>(downsets_.size()) * static_cast<double>(downsets_.size()) / 2;
    if (num_depths_ > 1 && pairs * devices * devices * static_cast<double>(num_depths_) > kMostWork) {
      num_depths_ = 1;
      exhaustive_ = false;
      keeps_all_ = true;
    }
  }

  std::optional<StageAnswer> run() {
    fill();
    const Option* best = nullptr;
    size_t at = 0;
    for (size_t depth = 0; depth < num_depths_; ++depth)
      for (int devices = 1; devices <= problem_.num_devices; ++devices)
        for (const Option& option : table_[state(0, depth, devices)])
          if (!best || objective(option) < objective(*best)) best = &option, at = state(0, depth, devices);
    if (!best) return std::nullopt;
    return answer(*best, at);
  }

 private:
  /// Downsets sorted by size, so that subsets come first.
  Downsets find_downsets() {
    if (ordered_.order.size() < n_) fail(ErrorCode::kBadInput, "\"edges\": expected no cycle, found one");
    if (!problem_.may_pipeline) return uncut_downsets(static_cast<int>(n_));
    Downsets all = all_downsets(ordered_.dag, static_cast<size_t>(std::sqrt(2 * kMostPairs)));
    if (all.size() > 0) return all;
    exhaustive_ = false;
    return prefix_downsets(ordered_.dag);
  }

  bool holds(size_t downset, size_t layer) const { return downsets_.holds(downset, number_[layer]); }

  size_t state(size_t downset, size_t depth, int devices) const {
    return (downset * num_depths_ + depth) * static_cast<size_t>(problem_.num_devices + 1) + static_cast<size_t>(devices);
  }

  double objective(const Option& option) const {
    return problem_.num_micro_batches == 0 ? option.largest : option.sum + (problem_.num_micro_batches - 1) * option.largest;
  }

  /// The stage between two downsets.
  Part part(size_t begin, size_t end) const {
    Part out;
    for (size_t i = 0; i < n_; ++i) {
      if (!holds(end, i)) continue;
      const StageProblem::Layer& layer = problem_.layers[i];
      const bool inside = !holds(begin, i);
      if (inside) {
        out.seconds += layer.forward_seconds + layer.backward_seconds;
        out.weight_bytes += layer.weight_bytes;
        out.stash_bytes += layer.stash_bytes;
      }
      const auto crosses = [&](int reader) { return inside ? !holds(end, reader) : holds(end, reader) && !holds(begin, reader); };
      if (std::any_of(readers_[i].begin(), readers_[i].end(), crosses)) out.seconds += layer.transfer_seconds;
    }
    return out;
  }

  void fill() {
    const size_t last = downsets_.size() - 1;
    table_.resize(downsets_.size() * num_depths_ * static_cast<size_t>(problem_.num_devices + 1));
    for (size_t begin = last; begin-- > 0;) {
      const bool late = steady_seconds() > deadline_;  // Then only one stage of the rest, or one layer and known options, are tried.
      if (late) exhaustive_ = false;
      for (size_t end = begin + 1; end <= last; end = late && end < last && end > begin + 1 ? last : end + 1)
        if (downsets_.is_subset(begin, end)) extend(begin, end, part(begin, end), end == last);
    }
  }

  bool fits(const Part& part, size_t stages_from_here) const {
    int kept = 1;
    if (problem_.num_micro_batches > 1) kept = std::min(problem_.num_micro_batches, static_cast<int>(stages_from_here));
    if (keeps_all_) kept = problem_.num_micro_batches;
    return part.weight_bytes + part.stash_bytes * kept <= problem_.memory_bytes;
  }

  void extend(size_t begin, size_t end, const Part& part, bool is_last) {
    const int most = problem_.may_replicate ? problem_.num_devices : 1;
    if (is_last) {
      for (int r = 1; r <= most && fits(part, 1); ++r) add(begin, 0, r, {part.seconds / r, part.seconds / r, static_cast<int>(end), r, -1});
      return;
    }
    for (size_t depth = 0; depth < num_depths_; ++depth) {
      const size_t deeper = num_depths_ > 1 ? depth + 1 : 0;
      if (deeper >= num_depths_ || !fits(part, deeper + 1)) break;
      for (int used = 1; used < problem_.num_devices; ++used) {
        const std::vector<Option>& rest = table_[state(end, depth, used)];
        for (int r = 1; r <= std::min(most, problem_.num_devices - used); ++r)
          for (size_t i = 0; i < rest.size(); ++i)
            add(begin, deeper, used + r,
                {std::max(part.seconds / r, rest[i].largest), part.seconds / r + rest[i].sum, static_cast<int>(end), r,
                 static_cast<int>(i)});
      }
    }
  }

  /// Keeps the Pareto front of (largest, sum); in steady state only the largest load counts.
  void add(size_t downset, size_t depth, int devices, Option option) {
    if (problem_.num_micro_batches == 0) option.sum = 0;
    std::vector<Option>& front = table_[state(downset, depth, devices)];
    for (const Option& other : front)
      if (other.largest <= option.largest && other.sum <= option.sum) return;
    std::erase_if(front, [&](const Option& other) { return option.largest <= other.largest && option.sum <= other.sum; });
    if (front.size() < kMostFront) front.push_back(option);
    else exhaustive_ = false;
  }

  StageAnswer answer(const Option& best, size_t at) const {
    StageAnswer out;
    out.objective = objective(best);
    const size_t per_depth = static_cast<size_t>(problem_.num_devices + 1);
    size_t downset = 0, depth = at / per_depth % num_depths_;
    int devices = static_cast<int>(at % per_depth);
    for (const Option* option = &best;;) {
      StageAnswer::Stage stage;
      const auto end = static_cast<size_t>(option->end);
      for (const int node : downsets_.between(downset, end)) stage.layers.push_back(ordered_.order[node]);
      stage.num_devices = option->replicas;
      stage.load_seconds = part(downset, end).seconds / option->replicas;
      out.stages.push_back(std::move(stage));
      if (option->rest < 0) break;
      downset = end;
      devices -= option->replicas;
      depth -= num_depths_ > 1 ? 1 : 0;
      option = &table_[state(downset, depth, devices)][option->rest];
    }
    set_bound(out);
    return out;
  }

  void set_bound(StageAnswer& out) const {
    double work = 0, largest = 0;
    for (const StageProblem::Layer& layer : problem_.layers) {
      work += layer.forward_seconds + layer.backward_seconds;
      largest = std::max(largest, layer.forward_seconds + layer.backward_seconds);
    }
    const double area = work / (problem_.may_pipeline || problem_.may_replicate ? problem_.num_devices : 1);
    out.lower_bound = std::max(area, problem_.may_replicate ? 0 : largest);
    out.bound_by = out.lower_bound > area ? "largest layer" : "area";
    // A sum of loads is at least the work over all devices, and at least the largest.
    if (problem_.num_micro_batches > 0) out.lower_bound *= problem_.num_micro_batches;
    if (exhaustive_) out.lower_bound = out.objective, out.bound_by = "search";
    out.lower_bound = std::min(out.lower_bound, out.objective);
    out.optimal = out.objective - out.lower_bound <= 1e-9 * out.objective;
  }

  const StageProblem& problem_;
  size_t n_;
  double deadline_;
  bool exhaustive_ = true, keeps_all_ = false;
  std::vector<std::vector<int>> readers_;
  OrderedDag ordered_;
  std::vector<int> number_;  ///< Number of each layer in the graph of `ordered_`.
  Downsets downsets_;
  size_t num_depths_ = 1;
  std::vector<std::vector<Option>> table_;  ///< Keyed by preceding downset, number of later stages (minus one), their devices.
};

}  // namespace

std::optional<StageAnswer> search_stages(const StageProblem& problem, double search_seconds) {
  return StageSearch(problem, search_seconds).run();
}

}  // namespace cohort

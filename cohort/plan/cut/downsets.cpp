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
#include <limits>
#include <set>
#include <utility>

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

/// Takes nodes one by one; `choose` gives the place in `ready`, the nodes that can come next in the order in which they became so.
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

/// Always the node that makes the outputs which later nodes need grow least.
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
  Dag turned = dag;  // Ties the other way round.
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

}  // namespace cohort

// The loads of a plan, and contractions of a problem.

#include "bench/program/published/load_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace cohort {

std::vector<double> loads_of(const LoadProblem& problem, const Placement& placement) {
  std::vector<double> loads(problem.num_parts());
  for (size_t i = 0; i < placement.size(); ++i) loads[placement[i]] += problem.work_on(placement[i], static_cast<int>(i));
  for (const LoadProblem::Net& net : problem.nets) {
    std::set<int> parts;
    for (const int pin : net.pins) parts.insert(placement[pin]);
    if (parts.size() < 2) continue;
    for (const int part : parts)
      if (!problem.is_cpu(part)) loads[part] += net.cost;
  }
  return loads;
}

double largest_load(const LoadProblem& problem, const Placement& placement) {
  const std::vector<double> loads = loads_of(problem, placement);
  return *std::max_element(loads.begin(), loads.end());
}

bool fits(const LoadProblem& problem, const Placement& placement) {
  std::vector<double> bytes(problem.num_parts());
  for (size_t i = 0; i < placement.size(); ++i) {
    bytes[placement[i]] += problem.items[i].bytes;
    if (!std::isfinite(problem.work_on(placement[i], static_cast<int>(i)))) return false;
  }
  for (int part = 0; part < problem.num_accelerators; ++part)
    if (bytes[part] > problem.memory_bytes) return false;
  return true;
}

double work_that_cpus_take(const LoadProblem& problem, double seconds) {
  std::vector<const LoadProblem::Item*> best_first;
  double left = seconds * problem.num_cpus, taken = 0;
  if (problem.num_cpus == 0) return 0;
  for (const LoadProblem::Item& item : problem.items)
    if (item.work > 0 && item.cpu_work <= seconds && std::isfinite(item.work)) best_first.push_back(&item);
  std::sort(best_first.begin(), best_first.end(),
            [](const auto* a, const auto* b) { return a->work * b->cpu_work > b->work * a->cpu_work; });
  for (const LoadProblem::Item* item : best_first) {
    const double share = item->cpu_work <= left ? 1 : left / item->cpu_work;
    taken += share * item->work;
    left -= share * item->cpu_work;
    if (share < 1) break;
  }
  return taken;
}

// Which items share a device in every good plan, joined into one: graphs of a thousand operators become problems of a hundred items.
//
// With a largest load of at most T there is room for S = k T - (all work - the work that CPU cores can take in T) seconds of transfers on
// the k accelerators. A net that is cut costs c on one accelerator at least, and on two unless its other end is a CPU core. So its pins
// stay together where
//   c > S, or c + the least work of a pin > T                        (no accelerator can pay for it), or
//   no pin can be on a CPU core within T, and 2 c > S or all but one pin are too much for an accelerator that pays.
// Joining makes items larger, which joins more: repeated until nothing changes. With several CPU cores a net may be cut between two of
// them at no cost, so nothing is joined unless no pin can run there. Cost: O(pins) a round, a few rounds.

namespace {

class Groups {
 public:
  explicit Groups(const LoadProblem& problem) : items_(problem.items), parent_(problem.items.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int find(int item) {
    while (parent_[item] != item) item = parent_[item] = parent_[parent_[item]];
    return item;
  }
  const LoadProblem::Item& of(int root) const { return items_[root]; }
  void join(int a, int b) {
    a = find(a), b = find(b);
    if (a == b) return;
    parent_[b] = a;
    items_[a].work += items_[b].work;
    items_[a].cpu_work += items_[b].cpu_work;
    items_[a].bytes += items_[b].bytes;
  }
  std::vector<int> all() {
    std::vector<int> group_of(parent_.size());
    for (size_t i = 0; i < group_of.size(); ++i) group_of[i] = find(static_cast<int>(i));
    return group_of;
  }

 private:
  std::vector<LoadProblem::Item> items_;
  std::vector<int> parent_;
};

std::vector<int> roots_of(const LoadProblem::Net& net, Groups& groups) {
  std::vector<int> roots;
  for (const int pin : net.pins) roots.push_back(groups.find(pin));
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

struct Limits {
  double most_load, slack;
  bool has_cpu;
};

bool stays_together(const std::vector<int>& roots, double cost, const Groups& groups, const Limits& limits, int num_cpus) {
  double first = std::numeric_limits<double>::infinity(), second = first, cpu = first;  // Least works of pins.
  for (const int root : roots) {
    const LoadProblem::Item& item = groups.of(root);
    if (item.work < first) second = first, first = item.work;
    else second = std::min(second, item.work);
    cpu = std::min(cpu, item.cpu_work);
  }
  const bool cpu_takes_one = limits.has_cpu && cpu <= limits.most_load;
  if (cpu_takes_one) return num_cpus == 1 && (cost > limits.slack || cost + first > limits.most_load);
  return 2 * cost > limits.slack || cost + second > limits.most_load;
}

}  // namespace

Placement Contraction::widen(const Placement& placement) const {
  Placement wide;
  for (const int item : item_of) wide.push_back(placement[item]);
  return wide;
}

void Contraction::further(const Contraction& next) {
  problem = next.problem;
  for (int& item : item_of) item = next.item_of[item];
}

Contraction contract(const LoadProblem& problem, const std::vector<int>& group_of) {
  Contraction out;
  out.problem.num_accelerators = problem.num_accelerators;
  out.problem.num_cpus = problem.num_cpus;
  out.problem.memory_bytes = problem.memory_bytes;
  std::map<int, int> number;
  for (size_t i = 0; i < group_of.size(); ++i) {
    const auto [at, fresh] = number.emplace(group_of[i], static_cast<int>(number.size()));
    if (fresh) out.problem.items.emplace_back();
    out.item_of.push_back(at->second);
    LoadProblem::Item& item = out.problem.items[at->second];
    item.work += problem.items[i].work;
    item.cpu_work += problem.items[i].cpu_work;
    item.bytes += problem.items[i].bytes;
  }
  std::map<std::vector<int>, double> cost_of;
  for (const LoadProblem::Net& net : problem.nets) {
    std::vector<int> pins;
    for (const int pin : net.pins) pins.push_back(out.item_of[pin]);
    std::sort(pins.begin(), pins.end());
    pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
    if (pins.size() > 1 && net.cost > 0) cost_of[pins] += net.cost;
  }
  for (const auto& [pins, cost] : cost_of) out.problem.nets.push_back({cost, pins});
  return out;
}

Contraction contract_below(const LoadProblem& problem, double most_load) {
  Groups groups(problem);
  double work = 0;
  for (const LoadProblem::Item& item : problem.items) work += std::isfinite(item.work) ? item.work : 0;
  const double room = 1e-9 * (most_load + work);  // Rounding errors never join what a plan has apart.
  const Limits limits = {
      .most_load = most_load + room,
      .slack = problem.num_accelerators * most_load - work + work_that_cpus_take(problem, most_load + room) + room,
      .has_cpu = problem.num_cpus > 0,
  };
  Contraction out = contract(problem, groups.all());
  for (bool changed = true; changed;) {
    changed = false;
    Groups larger(out.problem);
    for (const LoadProblem::Net& net : out.problem.nets) {
      const std::vector<int> roots = roots_of(net, larger);
      if (roots.size() < 2 || !stays_together(roots, net.cost, larger, limits, problem.num_cpus)) continue;
      for (const int root : roots) larger.join(roots.front(), root);
      changed = true;
    }
    if (!changed) break;
    out.further(contract(out.problem, larger.all()));
  }
  return out;
}

Contraction contract_dominated(const LoadProblem& problem, double most_load) {
  Contraction out = contract(problem, Groups(problem).all());
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<double> cost_of(out.problem.items.size());
    for (const LoadProblem::Net& net : out.problem.nets)
      for (const int pin : net.pins) cost_of[pin] += net.cost;
    Groups larger(out.problem);
    std::vector<bool> touched(out.problem.items.size());
    for (const LoadProblem::Net& net : out.problem.nets) {
      if (net.pins.size() != 2 || touched[net.pins[0]] || touched[net.pins[1]]) continue;
      const LoadProblem::Item &a = out.problem.items[net.pins[0]], &b = out.problem.items[net.pins[1]];
      const bool leaves_a = 2 * net.cost >= a.work + cost_of[net.pins[0]], leaves_b = 2 * net.cost >= b.work + cost_of[net.pins[1]];
      if (!(leaves_a || leaves_b) || a.work + b.work > most_load || a.bytes + b.bytes > problem.memory_bytes) continue;
      touched[net.pins[0]] = touched[net.pins[1]] = changed = true;
      larger.join(net.pins[0], net.pins[1]);
    }
    if (changed) out.further(contract(out.problem, larger.all()));
  }
  return out;
}

Contraction contract_heavy(const LoadProblem& problem, double cost, double most_load) {
  Groups groups(problem);
  std::vector<const LoadProblem::Net*> heavy;
  for (const LoadProblem::Net& net : problem.nets)
    if (net.cost >= cost) heavy.push_back(&net);
  std::stable_sort(heavy.begin(), heavy.end(), [](const auto* a, const auto* b) { return a->cost > b->cost; });
  for (const LoadProblem::Net* net : heavy) {
    double work = 0, bytes = 0;
    const std::vector<int> roots = roots_of(*net, groups);
    for (const int root : roots) work += groups.of(root).work, bytes += groups.of(root).bytes;
    if (work > most_load || bytes > problem.memory_bytes) continue;
    for (const int root : roots) groups.join(roots.front(), root);
  }
  return contract(problem, groups.all());
}

}  // namespace cohort

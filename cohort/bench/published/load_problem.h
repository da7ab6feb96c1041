#pragma once
// Pieces of work on devices, and values that cost time wherever they cross from one device to another: what the largest load of a plan is
// made of. A producer and its readers are the pins of a net; a net that lies on several devices costs each accelerator of them once.

#include <cstdint>
#include <vector>

namespace cohort {

struct LoadProblem {
  struct Item {
    double work = 0;      ///< On an accelerator; infinite where none can run it.
    double cpu_work = 0;  ///< On a CPU core.
    double bytes = 0;     ///< On an accelerator.
  };
  struct Net {
    double cost = 0;
    std::vector<int> pins;  ///< Items, sorted, none twice.
  };
  std::vector<Item> items;
  std::vector<Net> nets;
  int num_accelerators = 1, num_cpus = 0;
  double memory_bytes = 0;  ///< Of an accelerator.

  int num_parts() const { return num_accelerators + num_cpus; }
  bool is_cpu(int part) const { return part >= num_accelerators; }
  double work_on(int part, int item) const { return is_cpu(part) ? items[item].cpu_work : items[item].work; }
};

/// A part for each item: accelerators from 0, CPU cores behind them.
using Placement = std::vector<int>;

/// Of each part.
std::vector<double> loads_of(const LoadProblem& problem, const Placement& placement);
double largest_load(const LoadProblem& problem, const Placement& placement);
/// Memory holds, and each item is where it can run.
bool fits(const LoadProblem& problem, const Placement& placement);

/// A smaller problem in which items that stay together are one, with the way back.
struct Contraction {
  LoadProblem problem;
  std::vector<int> item_of;  ///< Of each old item.

  Placement widen(const Placement& placement) const;
  /// Contracts what was contracted once more.
  void further(const Contraction& next);
};

/// Items of one group become one item; nets inside of one vanish, nets of the same pins are added up.
Contraction contract(const LoadProblem& problem, const std::vector<int>& group_of);
/// Joins all items that share a device in every plan whose largest load is at most `most_load`; see load_problem.cpp.
Contraction contract_below(const LoadProblem& problem, double most_load);
/// Joins an item to its neighbour where moving it there never makes an accelerator's load larger: the net between the two costs as much as
/// the item's work and its other nets. Only a search may use it: CPU cores and memory may want it otherwise.
Contraction contract_dominated(const LoadProblem& problem, double most_load);
/// Joins the pins of each net that costs at least `cost`, as long as what comes of it takes at most `most_load` and fits an accelerator.
Contraction contract_heavy(const LoadProblem& problem, double cost, double most_load);

/// The most work that CPU cores can take off the accelerators in `seconds` each: a knapsack with pieces of items.
double work_that_cpus_take(const LoadProblem& problem, double seconds);

}  // namespace cohort

#pragma once
// The problem of placing items of work on devices with the smallest largest load, where values cost time when they cross between devices. A
// producer and its readers are the pins of a net; a net that lies on several devices costs each accelerator of them once.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

struct LoadProblem {
  struct Item {
    double work = 0;      ///< Seconds on an accelerator; infinite if none can run it.
    double cpu_work = 0;  ///< Seconds on a CPU core.
    double bytes = 0;     ///< Memory on an accelerator.
  };
  struct Net {
    double cost = 0;
    std::vector<int> pins;  ///< Items, sorted, each once.
  };
  std::vector<Item> items;
  std::vector<Net> nets;
  int num_accelerators = 1, num_cpus = 0;
  double memory_bytes = 0;  ///< Memory of an accelerator.

  int num_parts() const { return num_accelerators + num_cpus; }
  bool is_cpu(int part) const { return part >= num_accelerators; }
  double work_on(int part, int item) const { return is_cpu(part) ? items[item].cpu_work : items[item].work; }
};

/// The part of each item: accelerators from 0, then CPU cores.
using Placement = std::vector<int>;

/// The load of each part.
std::vector<double> loads_of(const LoadProblem& problem, const Placement& placement);
double largest_load(const LoadProblem& problem, const Placement& placement);
/// Whether memory suffices and each item can run on its part.
bool fits(const LoadProblem& problem, const Placement& placement);

/// A smaller problem in which groups of items are joined, and the mapping back.
struct Contraction {
  LoadProblem problem;
  std::vector<int> item_of;  ///< The new item of each old one.

  Placement widen(const Placement& placement) const;
  /// Composes this contraction with a further one.
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

// The search for the plan with the smallest largest load, its lower bound, and its steps.

/// A lower bound on the load of any plan.
struct Bound {
  double value = 0;
  std::string by;  ///< The relaxation it comes from.
};

/// The best of the cheap bounds: area, largest piece, bin packing of pieces that no plan below `most_load` divides. `most_load`: the load
/// of a plan that is there; the bound is never above it.
Bound lower_bound(const LoadProblem& problem, double most_load);

enum class LoadVerdict { kFound, kNone, kUnknown };
/// Is there a plan of at most `most_load`? By trying all, up to `most_steps`; `found` receives the plan.
LoadVerdict search_all(const LoadProblem& problem, double most_load, int64_t most_steps, Placement* found);

/// The best plan in which each accelerator has a run of the items in a given order. Items that only a CPU core can run go to the first one.
/// Memory is kept where it can be; the answer fits where any cut of the order does.
Placement cut_order(const LoadProblem& problem, const std::vector<int>& order);

/// A placement under change: what each move does to the loads, in the time of the nets of the items that move.
class LoadState {
 public:
  LoadState(const LoadProblem& problem, Placement placement);

  void move(int item, int to);
  /// Bytes of a part beyond its memory, relative to that memory.
  double excess(int part) const;

  int part_of(int item) const { return placement_[item]; }
  const Placement& placement() const { return placement_; }
  const std::vector<double>& loads() const { return loads_; }
  const std::vector<int>& nets_of(int item) const { return nets_of_[item]; }
  /// Nets that lie on several parts, in no order.
  const std::vector<int>& cut_nets() const { return cut_; }
  /// Starts over without the rounding errors of many moves.
  void restart(const Placement& placement);

 private:
  void pay(int part, double cost) { loads_[part] += problem_.is_cpu(part) ? 0 : cost; }
  void leave(int net, int part);
  void enter(int net, int part);
  void cut(int net);
  void join(int net);

  const LoadProblem& problem_;
  size_t num_parts_;
  std::vector<std::vector<int>> nets_of_;
  Placement placement_;
  std::vector<double> loads_, bytes_;
  std::vector<int> count_;  ///< Number of pins of each net on each part.
  std::vector<int> span_;   ///< Number of parts of each net.
  std::vector<int> cut_;    ///< Nets with a span above 1,
  std::vector<int> place_;  ///< and where each stands among them.
};

struct AnnealOptions {
  int64_t steps = 100'000;
  double hot = 0.03;       ///< Largest rise of the load that is often accepted, as a share of it: in the beginning,
  double cold = 0.0002;    ///< and in the end.
  double mean_weight = 1;  ///< Weight of the accelerators' mean load in the objective.
  uint64_t seed = 1;       ///< The same seed gives the same answer.
  double goal = 0;         ///< A load that ends the search.
  double deadline = 0;     ///< steady_seconds() at which it ends; 0: none.
};

/// A placement made better by many small random changes: the best one seen that fits, by largest load; `start` where none is better.
/// `start` need not fit.
Placement anneal_loads(const LoadProblem& problem, const Placement& start, const AnnealOptions& options);

struct LoadSearchOptions {
  int64_t steps = 0;           ///< Steps of annealing; 0: by the number of items. They count, not seconds, so that answers repeat.
  double search_seconds = 10;  ///< The largest search time.
  uint64_t seed = 1;
};

struct LoadAnswer {
  Placement placement;
  double largest_load = 0;
  Bound bound;
  bool optimal = false;
};

/// `order`: the items as they come one after the other. nullopt where nothing was found that fits.
std::optional<LoadAnswer> search_loads(const LoadProblem& problem, const std::vector<int>& order, const LoadSearchOptions& options);

}  // namespace cohort

#pragma once
// The plan with the least largest load that the search finds, what no plan can be below, and the steps of the search.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/bench/published/load_problem.h"

namespace cohort {

/// What no plan can be below.
struct Bound {
  double value = 0;
  std::string by;  ///< The relaxation that gave it.
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
  /// Bytes that a part holds beyond its memory, as a share of it.
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
  std::vector<int> count_;  ///< Pins of a net on a part, net by net.
  std::vector<int> span_;   ///< Parts that a net lies on.
  std::vector<int> cut_;    ///< Nets with a span above 1,
  std::vector<int> place_;  ///< and where each stands among them.
};

struct AnnealOptions {
  int64_t steps = 100'000;
  double hot = 0.03;       ///< Largest rise of the load that is often accepted, as a share of it: in the beginning,
  double cold = 0.0002;    ///< and in the end.
  double mean_weight = 1;  ///< Of the accelerators' mean load beside the largest.
  uint64_t seed = 1;       ///< The same seed gives the same answer.
  double goal = 0;         ///< A load that ends the search.
  double deadline = 0;     ///< steady_seconds() at which it ends; 0: none.
};

/// A placement made better by many small random changes: the best one seen that fits, by largest load; `start` where none is better.
/// `start` need not fit.
Placement anneal_loads(const LoadProblem& problem, const Placement& start, const AnnealOptions& options);

struct LoadSearchOptions {
  int64_t steps = 0;           ///< Of annealing; 0: by the number of items. They count, not seconds, so that answers repeat.
  double search_seconds = 10;  ///< At most.
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

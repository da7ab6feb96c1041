#pragma once
// A placement under change: what each move does to the loads, in the time of the nets of the items that move.

#include <cstddef>
#include <vector>

#include "cohort/plan/search/load_problem.h"

namespace cohort {

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

}  // namespace cohort

// Cuts an order of the items into runs, one an accelerator, so that the largest load is least: a first plan for the search.
//
// best[d][j] = min over i of max(best[d - 1][i], load of items [i, j)), by dynamic programming. A run that does not fit in memory counts
// as a load that is a million times what all takes, so that without a cut that fits the least wrong one comes out. The load of a run that
// grows item by item costs the nets of the items. Cost: O(n (pins + n k)); above 4096 items they are first joined in blocks of equal
// length. It is the linearised dynamic program of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators"
// (NeurIPS 2020, section 5), without CPU cores.

#include "cohort/plan/search/order_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cohort {
namespace {

class OrderCut {
 public:
  OrderCut(const LoadProblem& problem, const std::vector<int>& order) : problem_(problem), order_(order), nets_of_(problem.items.size()) {
    for (size_t n = 0; n < problem.nets.size(); ++n)
      for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
    for (const LoadProblem::Item& item : problem.items) fine_ += std::isfinite(item.work) ? item.work : 0;
    for (const LoadProblem::Net& net : problem.nets) fine_ += net.cost;
    fine_ = 1e6 * (fine_ + 1);
    block_ = (order.size() + 4095) / 4096;
    num_places_ = (order.size() + block_ - 1) / block_;
  }

  Placement run() {
    fill();
    Placement placement(problem_.items.size(), problem_.num_accelerators);
    size_t end = num_places_;
    for (size_t d = num_runs_; d > 0; --d) {
      const size_t begin = from_[d - 1][end];
      for (size_t at = begin * block_; at < std::min(end * block_, order_.size()); ++at)
        if (std::isfinite(problem_.items[order_[at]].work)) placement[order_[at]] = static_cast<int>(d - 1);
      end = begin;
    }
    return placement;
  }

 private:
  void fill() {
    num_runs_ = std::min<size_t>(static_cast<size_t>(problem_.num_accelerators), std::min<size_t>(num_places_, 256));
    const double none = std::numeric_limits<double>::infinity();
    best_.assign(num_runs_ + 1, std::vector<double>(num_places_ + 1, none));
    from_.assign(num_runs_, std::vector<size_t>(num_places_ + 1, 0));
    best_[0][0] = 0;
    for (size_t begin = 0; begin < num_places_; ++begin) {
      for (size_t d = 1; d <= num_runs_; ++d) relax(d, begin, begin, 0);  // A device may stay empty.
      grow_from(begin);
    }
    for (size_t d = 1; d <= num_runs_; ++d) relax(d, num_places_, num_places_, 0);
  }

  void relax(size_t d, size_t begin, size_t end, double load) {
    const double value = std::max(best_[d - 1][begin], load);
    if (value < best_[d][end]) best_[d][end] = value, from_[d - 1][end] = begin;
  }

  void grow_from(size_t begin) {
    std::vector<int> inside(problem_.nets.size());
    double load = 0, bytes = 0;
    for (size_t end = begin; end < num_places_; ++end) {
      for (size_t at = end * block_; at < std::min((end + 1) * block_, order_.size()); ++at) {
        const int item = order_[at];
        if (!std::isfinite(problem_.items[item].work)) continue;
        load += problem_.items[item].work;
        bytes += problem_.items[item].bytes;
        for (const int n : nets_of_[item]) {
          const LoadProblem::Net& net = problem_.nets[n];
          if (++inside[n] == 1) load += net.cost;
          if (inside[n] == static_cast<int>(net.pins.size())) load -= net.cost;
        }
      }
      const double counted = load + (bytes > problem_.memory_bytes ? fine_ * (bytes / std::max(problem_.memory_bytes, 1.0)) : 0);
      for (size_t d = 1; d <= num_runs_; ++d) relax(d, begin, end + 1, counted);
    }
  }

  const LoadProblem& problem_;
  const std::vector<int>& order_;
  std::vector<std::vector<int>> nets_of_;
  double fine_ = 0;  ///< Of a run that does not fit.
  size_t block_ = 1, num_places_ = 0, num_runs_ = 0;
  std::vector<std::vector<double>> best_;  ///< By accelerators used and places done.
  std::vector<std::vector<size_t>> from_;
};

}  // namespace

Placement cut_order(const LoadProblem& problem, const std::vector<int>& order) { return OrderCut(problem, order).run(); }

}  // namespace cohort

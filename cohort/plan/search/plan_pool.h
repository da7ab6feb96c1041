#pragma once
// The plans that a search has met: the best, those behind it, the front of time against memory. Internal to this folder.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/plan/search/joint_search.h"

namespace cohort {

class PlanPool {
 public:
  explicit PlanPool(Objective objective) : objective_(objective) {}

  /// A plan that fits; of equals the first stays. Returns whether it is the best now.
  bool add(const RankedPlan& plan);
  bool empty() const { return best_.empty(); }
  /// Infinite where there is none.
  double best_objective() const;
  const RankedPlan& best() const { return best_.front(); }
  std::vector<RankedPlan> runners_up(int count) const;
  const std::vector<RankedPlan>& front() const { return front_; }

 private:
  Objective objective_;
  std::vector<RankedPlan> best_;   ///< Best first, no two alike but for their cut.
  std::vector<RankedPlan> front_;  ///< Rising time, falling memory.
};

/// What plans differ in that are not alike: degrees, ZeRO, schedule, precision, compression, batch and recompute.
std::string kind_of(const RankedPlan& plan);

// What to say where nothing fits. Internal to this folder.

/// The plan with the least peak of memory that a search of at most `seconds` finds, whether it fits or not.
using LeastMemory = std::function<std::optional<RankedPlan>(const SearchRequest& request, double seconds)>;

/// One line: the constraint, the least memory and the least number of devices that would do. `least`: of the request itself.
std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search);

}  // namespace cohort

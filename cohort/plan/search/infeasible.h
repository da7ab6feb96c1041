#pragma once
// What to say where nothing fits. Internal to this folder.

#include <functional>
#include <optional>
#include <string>

#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// The plan with the least peak of memory that a search of at most `seconds` finds, whether it fits or not.
using LeastMemory = std::function<std::optional<RankedPlan>(const SearchRequest& request, double seconds)>;

/// One line: the constraint, the least memory and the least number of devices that would do. `least`: of the request itself.
std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search);

}  // namespace cohort

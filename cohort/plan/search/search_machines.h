#pragma once
// The search over several machines of which one is taken: this one, with one rank that has all cores, with two that have half each, ...

#include <optional>
#include <string>
#include <vector>

#include "cohort/plan/search/joint_search.h"

namespace cohort {

struct MachineAnswer {
  SearchRequest request;  ///< With the machine that was taken as its cluster.
  PlanAnswer answer;      ///< Its bound is the least over all machines.
  struct Tried {
    SearchRequest request;           ///< With this machine.
    std::optional<RankedPlan> plan;  ///< Nothing: `why`.
    std::string why = {};
  };
  std::vector<Tried> tried;  ///< One a machine, in their order.
};

/// `request.problem.profile.measured_on` are the machines; those of more than `most_workers` devices are left out (0: none). On each
/// only layouts of more ranks than the next smaller machine has are looked at. Each gets its
/// part of search_seconds. Errors as search_plan(), where nothing fits on any; kBadInput where no machine is left.
MachineAnswer search_machines(const SearchRequest& request, int most_workers, const std::function<void(const SearchProgress&)>& progress,
                              const std::atomic<bool>* stop);

}  // namespace cohort

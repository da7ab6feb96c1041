#include "cohort/plan/joint/search_machines.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"

namespace cohort {

MachineAnswer search_machines(const SearchRequest& request, int most_workers, const std::function<void(const SearchProgress&)>& progress,
                              const std::atomic<bool>* stop) {
  std::vector<Cluster> machines;
  for (const Cluster& machine : request.problem.profile.measured_on)
    if (most_workers == 0 || machine.num_devices() <= most_workers) machines.push_back(machine);
  if (machines.empty())
    fail(ErrorCode::kBadInput, "the profile was measured with more workers than ", most_workers, "; measure again, or give --cluster FILE");
  MachineAnswer out;
  std::optional<Error> last;
  double bound = std::numeric_limits<double>::infinity();
  for (const Cluster& machine : machines) {
    SearchRequest here = request;
    here.problem.cluster = machine;
    here.num_workers = 0;
    here.search_seconds = request.search_seconds / static_cast<double>(machines.size());
    out.tried.push_back({here, {}});
    try {
      PlanAnswer answer = search_plan(here, progress, stop);
      out.tried.back().plan = answer.best;
      bound = std::min(bound, answer.lower_bound);
      // Of equals fewer workers: the machines rise.
      if (out.request.problem.cluster.hosts.empty() || answer.best.objective < out.answer.best.objective)
        out.request = here, out.answer = std::move(answer);
    } catch (const Error& error) {
      last = error;  // Keys that are given may need more workers than this machine has.
    }
  }
  if (out.request.problem.cluster.hosts.empty()) throw Error(*last);
  if (bound < out.answer.lower_bound) out.answer.lower_bound = bound, out.answer.optimal = false;
  return out;
}

}  // namespace cohort

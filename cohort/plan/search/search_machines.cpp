#include "cohort/plan/search/joint_search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The product of the given degrees.
int64_t given_ranks(const SearchRequest& request) {
  int64_t ranks = 1;
  for (const auto& [key, value] : request.fixed)
    if (key == "dp" || key == "pp" || key == "tp") ranks *= parse_integer(value).value_or(1);
  return ranks;
}

bool gives_all_degrees(const SearchRequest& request) {
  return request.fixed.contains("dp") && request.fixed.contains("pp") && request.fixed.contains("tp");
}

std::string why_nothing(const SearchRequest& request, int num_devices) {
  std::vector<std::string> given;
  for (const auto& [key, value] : request.fixed)
    if (key != "precision" && key != "compress") given.push_back(concat(key, "=", value));
  const std::string keys = join(given, ",");
  if (given_ranks(request) > num_devices) return concat("too few for ", keys);
  return keys.empty() ? "nothing fits" : concat("nothing fits with ", keys);
}

}  // namespace

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
    // Fewer ranks have the costs of a smaller machine, where one was measured.
    int least = 1;
    for (const Cluster& other : machines)
      if (other.num_devices() < machine.num_devices()) least = std::max(least, other.num_devices() + 1);
    if (gives_all_degrees(request) && given_ranks(request) < least) continue;
    SearchRequest here = request;
    here.least_workers = least;
    here.problem.cluster = machine;
    here.num_workers = 0;
    here.search_seconds = request.search_seconds / static_cast<double>(machines.size());
    out.tried.push_back({here, {}});
    try {
      PlanAnswer answer = search_plan(here, progress, stop);
      out.tried.back().plan = answer.best;
      bound = std::min(bound, answer.lower_bound);
      // Machines are in ascending order, so equals go to fewer workers.
      if (out.request.problem.cluster.hosts.empty() || answer.best.objective < out.answer.best.objective)
        out.request = here, out.answer = std::move(answer);
    } catch (const Error& error) {
      last = error;
      // Given keys may need more workers than this machine has.
      out.tried.back().why = why_nothing(request, machine.num_devices());
    }
  }
  if (out.request.problem.cluster.hosts.empty()) {
    if (last) throw Error(*last);
    fail(ErrorCode::kBadInput, "the profile was measured with more workers than the layout has; measure again with fewer");
  }
  if (bound < out.answer.lower_bound) out.answer.lower_bound = bound, out.answer.optimal = false;
  return out;
}

}  // namespace cohort

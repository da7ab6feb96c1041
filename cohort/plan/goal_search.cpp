// The time to a goal by number of workers.
//
//   1. All workers that there may be: half of the time, and what Ctrl-C must not lose.
//   2. Half as many, a quarter, ..., 1, and plain data parallelism over all: each gets its part of the time that is left, so that one that
//      ends early leaves more to the others.
//   3. Rows rise: a plan for fewer workers is one for more, so where a search that was cut short found a worse one the better one is taken,
//      for the answer too.
//
// Plain data parallelism has dp over all workers, no ZeRO, no recompute, the precision of the answer, and chooses its batch by itself.
// Where no batch that the curve offers has a sample for each worker, those past the flat point are offered to it: that is what it would
// take.
//
// Cost: 2 + log2(workers) searches within one search's time.

#include "cohort/plan/goal_search.h"

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"

namespace cohort {
namespace {

using Progress = std::function<void(const SearchProgress&)>;

constexpr double kShareOfAll = 0.5;

/// Nothing where no plan was found.
std::optional<PlanAnswer> try_search(SearchRequest request, double seconds, const Progress& progress, const std::atomic<bool>* stop) {
  if (stop && stop->load()) return std::nullopt;
  request.search_seconds = std::max(0.01, seconds);
  request.says_what_would_fit = false;
  try {
    return search_plan(request, progress, stop);
  } catch (const Error& error) {
    // Keys that are given may need more workers than these.
    if (error.code() != ErrorCode::kInfeasible && error.code() != ErrorCode::kBadInput) throw;
    return std::nullopt;
  }
}

/// Nothing where keys that are given say otherwise.
std::optional<SearchRequest> plain_request(const SearchRequest& request, const std::vector<StepsPoint>& every_point, int workers,
                                           const RankedPlan& best) {
  SearchRequest plain = request;
  plain.may_compress = false;
  plain.num_runners_up = 0;
  const std::map<std::string, std::string> keys = {{"dp", std::to_string(workers)},
                                                   {"pp", "1"},
                                                   {"tp", "1"},
                                                   {"zero", "0"},
                                                   {"recompute", "none"},
                                                   {"compress", "none"},
                                                   {"precision", best.candidate.layout.precision}};
  for (const auto& [key, value] : request.fixed)
    if (!keys.contains(key) && key != "accumulate" && key != "shares") return std::nullopt;
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    const auto [at, is_new] = plain.fixed.emplace(key, value);
    if (!is_new && at->second != value) return std::nullopt;
  }
  const auto has_samples = [&](const StepsPoint& point) { return point.batch_size >= workers; };
  if (std::none_of(plain.steps_curve.begin(), plain.steps_curve.end(), has_samples)) plain.steps_curve = every_point;
  return plain;
}

void find_plain(const SearchRequest& request, const std::vector<StepsPoint>& every_point, int workers, double seconds,
                const Progress& progress, const std::atomic<bool>* stop, TimeToGoal& goal) {
  const auto plain = workers > 1 ? plain_request(request, every_point, workers, goal.chosen) : std::nullopt;
  if (!plain || (stop && stop->load())) return;
  const double start = steady_seconds();
  const auto found = try_search(*plain, seconds, progress, stop);
  if (!found && steady_seconds() - start >= 0.9 * seconds) return;  // Time was up: nothing is claimed.
  goal.plain_workers = workers;
  if (found) goal.plain = found->best;
}

/// A plan for fewer workers is one for more.
void take_better_of_fewer(std::vector<GoalRow>& rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i - 1].plan && rows[i].plan && rows[i - 1].plan->objective < rows[i].plan->objective) rows[i].plan = rows[i - 1].plan;
}

}  // namespace

GoalAnswer search_to_goal(const SearchRequest& request, const std::vector<StepsPoint>& every_point, const Progress& progress,
                          const std::atomic<bool>* stop) {
  const double end = steady_seconds() + request.search_seconds;
  const int most = request.num_workers > 0 ? request.num_workers : request.problem.cluster.num_devices();
  std::vector<int> fewer;
  for (int workers = 1; workers < most; workers *= 2) fewer.push_back(workers);
  SearchRequest all = request;
  if (!fewer.empty()) all.search_seconds *= kShareOfAll;
  GoalAnswer out{.answer = search_plan(all, progress, stop), .goal = {}};
  TimeToGoal& goal = out.goal;
  goal.chosen = out.answer.best;
  auto left = static_cast<double>(fewer.size()) + 1;
  const auto share = [&] { return (end - steady_seconds()) / left--; };
  find_plain(request, every_point, most, share(), progress, stop, goal);
  std::vector<GoalRow> rows = {{.num_workers = most, .plan = out.answer.best}};
  for (size_t i = fewer.size(); i-- > 0;) {
    SearchRequest small = request;
    small.num_workers = fewer[i];
    const double seconds = share(), start = steady_seconds();
    const auto found = try_search(small, seconds, progress, stop);
    const bool is_cut_short = steady_seconds() - start >= seconds || (stop && stop->load());
    if (found || !is_cut_short) rows.push_back({.num_workers = fewer[i], .plan = found ? std::optional(found->best) : std::nullopt});
  }
  std::reverse(rows.begin(), rows.end());
  take_better_of_fewer(rows);
  if (rows.back().plan->objective < out.answer.best.objective) {
    out.answer.runners_up.insert(out.answer.runners_up.begin(), out.answer.best);
    goal.chosen = out.answer.best = *rows.back().plan;
    out.answer.lower_bound = std::min(out.answer.lower_bound, goal.chosen.objective);
    out.answer.optimal = false;
  }
  goal.rows = std::move(rows);
  return out;
}

TimeToGoal goal_of_machines(const MachineAnswer& found, const std::vector<StepsPoint>& every_point, double seconds,
                            const Progress& progress, const std::atomic<bool>* stop) {
  TimeToGoal goal;
  goal.chosen = found.answer.best;
  for (const MachineAnswer::Tried& tried : found.tried)
    goal.rows.push_back({.num_workers = tried.request.problem.cluster.num_devices(), .plan = tried.plan});
  take_better_of_fewer(goal.rows);
  if (!found.tried.empty())
    find_plain(found.tried.back().request, every_point, goal.rows.back().num_workers, seconds, progress, stop, goal);
  return goal;
}

}  // namespace cohort

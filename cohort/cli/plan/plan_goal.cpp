#include "cohort/cli/plan/plan.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/data/source/source.h"
#include "cohort/study/goal_curve.h"
#include "cohort/tune/auto_batch.h"

namespace cohort {
namespace {

constexpr double kPlainShare = 0.15;  // The part of the search time, on this machine, for plain data parallelism.

}  // namespace

Arguments with_study(const Arguments& given) {
  if (given.config.study.empty()) return given;
  Arguments out = given;
  out.config = workload_of_study(given.config, [&](const std::string& setting) { return given.was_given(setting); });
  // With a cluster the profile determines the model.
  const bool has_costs = given.options.contains("profile") && given.options.contains("cluster");
  if (!has_costs) out.given.insert({"model", "data"});
  if (!has_costs && is_text_data(out.config.data).value_or(false)) out.given.insert("context");
  out.given.insert("optimizer");
  // The study counted steps in its own precision.
  if (out.config.layout.find("precision=") == std::string::npos) out.given.insert("precision");
  return out;
}

std::optional<study::GoalCurve> goal_curve_from(const Arguments& arguments) {
  const bool has_study = !arguments.config.study.empty(), has_file = arguments.options.contains("steps-curve");
  if (!has_study && !has_file) return std::nullopt;
  const std::string option = has_study ? "--study" : "--steps-curve", objective = arguments.option("objective", "time-to-goal");
  if (has_study && has_file) fail(ErrorCode::kBadInput, "--study and --steps-curve are two curves; leave one of them out");
  if (objective != "time-to-goal")
    fail(ErrorCode::kBadInput, option, " is for --objective time-to-goal, and the objective is ", objective, "; leave one of them out");
  if (arguments.was_given("global-batch"))
    fail(ErrorCode::kBadInput, "--global-batch with ", option, ": the batch is chosen among those of the curve; leave one of them out");
  return has_study ? study::curve_of_study(arguments.config.study) : study::read_goal_curve(arguments.option("steps-curve", ""));
}

void plan_to_goal(const study::GoalCurve& curve, bool has_cluster, int most_workers,
                  const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop, Plan& plan) {
  TimeToGoal goal;
  if (has_cluster) {
    GoalAnswer found = search_to_goal(plan.request, curve.all_points(), progress, stop);
    plan.answer = std::move(found.answer), goal = std::move(found.goal);
  } else {
    const double seconds = plan.request.search_seconds;
    plan.request.search_seconds *= 1 - kPlainShare;
    MachineAnswer found = search_machines(plan.request, most_workers, progress, stop);
    goal = goal_of_machines(found, curve.all_points(), kPlainShare * seconds, progress, stop);
    plan.request = std::move(found.request), plan.answer = std::move(found.answer);
  }
  study::add_worth(curve, goal);
  plan.reasons = goal_sentences(plan.request.problem.profile, goal);
  plan.goal = std::move(goal);
}

}  // namespace cohort

#include "cohort/tune/layout_trials.h"

#include <doctest/doctest.h>

#include <limits>

namespace cohort {
namespace {

RankedPlan plan_of(const Layout& layout, double seconds, const std::vector<bool>& recompute = {}) {
  RankedPlan plan{.candidate = {.layout = layout, .recompute = recompute}, .global_batch = 70, .objective = seconds};
  plan.forecast.step_seconds = seconds;
  return plan;
}

std::vector<const RankedPlan*> pointers(const std::vector<RankedPlan>& plans) {
  std::vector<const RankedPlan*> out;
  for (const RankedPlan& plan : plans) out.push_back(&plan);
  return out;
}

TEST_CASE("trials go to plans that differ in more than recompute and pieces, of one kind to the simplest that is forecast alike") {
  const std::vector<RankedPlan> plans = {plan_of({.dp = 2}, 1.000, {true, true}),     plan_of({.dp = 2}, 1.005),
                                         plan_of({.dp = 2, .accumulate = 2}, 1.02),   plan_of({.dp = 2, .zero = 1}, 1.03),
                                         plan_of({.pp = 2, .microbatches = 4}, 1.04), plan_of({.dp = 1}, 1.05)};
  CHECK(different_plans(pointers(plans), 3) == std::vector<size_t>{1, 3, 4});
  CHECK(different_plans(pointers(plans), 9) == std::vector<size_t>{1, 3, 4, 5});
  const std::vector<RankedPlan> apart = {plan_of({.dp = 2}, 1.0, {true, true}), plan_of({.dp = 2}, 1.1)};
  CHECK(different_plans(pointers(apart), 3) == std::vector<size_t>{0});
}

TEST_CASE("of trials that are as close as two measurements of one plan the simplest wins") {
  const std::vector<RankedPlan> plans = {plan_of({.dp = 2}, 1, {true}), plan_of({.dp = 2, .compress = "int8"}, 1), plan_of({.dp = 2}, 1),
                                         plan_of({.dp = 1}, 1)};
  CHECK(winner_of_trials(pointers(plans), {1.0, 1.01, 1.02, 1.2}) == 2);
  CHECK(winner_of_trials(pointers(plans), {1.0, 1.01, 1.02, 1.02}) == 3);
  CHECK(winner_of_trials(pointers(plans), {1.0, 1.01, 1.10, 1.2}) == 1);
  const double failed = std::numeric_limits<double>::infinity();
  CHECK(winner_of_trials(pointers(plans), {1.0, failed, failed, failed}) == 0);
  CHECK(winner_of_trials(pointers(plans), {failed, failed, failed, 2.0}) == 3);
}

TEST_CASE("a round number of pieces is taken where the forecast is the same within a hundredth, and where it fits") {
  PlanProblem problem{.global_batch = 72};
  problem.profile.layers = {{.name = "l", .kind = "linear", .num_trained = 10}};
  problem.profile.edges = {{-1, 0}};
  problem.profile.points = {{.micro_batch = 1, .layers = {{1, 1, 1, 1, 1, 1000, 4}}},
                            {.micro_batch = 70, .layers = {{70, 70, 70, 1, 1, 70000, 280}}}};
  problem.cluster.devices = {{.name = "d", .memory_bytes = 1 << 20, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1e9}};
  problem.cluster.hosts = {{1, 1, 0}};
  RankedPlan five = plan_of({.accumulate = 5}, 0);
  five.global_batch = 72;
  five.forecast = forecast_step(problem, five.candidate);
  five.objective = five.low = five.high = five.forecast.step_seconds;
  const RankedPlan round = with_round_accumulate(problem, five);
  CHECK(round.candidate.layout.accumulate == 4);
  CHECK(round.objective == doctest::Approx(round.forecast.step_seconds));
  problem.memory_limit_bytes = five.forecast.peak_memory_bytes() + 100;  // 15 samples; four pieces have 18, eight 9.
  const RankedPlan tight = with_round_accumulate(problem, five);
  CHECK(tight.forecast.fits);
  CHECK(tight.candidate.layout.accumulate == 8);
  CHECK(with_round_accumulate(problem, plan_of({.accumulate = 8}, 1)).candidate.layout.accumulate == 8);
}

}  // namespace
}  // namespace cohort

#include "cohort/study/search/batch_queue.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/synthetic_trials.h"

using namespace cohort;
using namespace cohort::study;

namespace {

const std::vector<GoalSpec> kOneGoal = {{kValLoss, 0.2}};
const std::vector<GoalSpec> kTwoMetrics = {{kValLoss, 0.2}, {kValError, 0.25}, {kValLoss, 0.4}};

TrialSummary summary(int64_t id, TrialStatus status, std::vector<int64_t> evaluated, int64_t reached) {
  TrialSummary made{id, status, evaluated.back(), {reached}, evaluated, std::vector<double>(evaluated.size(), 1.0)};
  return made;
}

int64_t fewest_steps(const std::vector<Trial>& trials, const GoalSpec& goal) {
  int64_t best = kNever;
  for (const Trial& trial : trials)
    for (const Measurement& one : trial.measurements)
      if (trial.status != TrialStatus::kInfeasible && goal.reached(one)) best = std::min(best, one.step);
  return best;
}

}  // namespace

TEST_CASE("the strictest goal of each metric is watched") {
  StudySpec spec = queue_spec(4, 100, {{kValError, 0.2}, {kValError, 0.1}, {kValPrecision, 0.3}, {kValPrecision, 0.5}});
  const CensorRule rule(spec);
  REQUIRE(rule.goals().size() == 2);
  CHECK(rule.goals()[0].value == 0.1);
  CHECK(rule.goals()[1].value == 0.5);
}

TEST_CASE("a trial is wanted up to margin times the fewer steps, while any goal can still be won") {
  StudySpec spec = queue_spec(4, 100, kTwoMetrics);
  spec.censor_margin = 1.5;
  const CensorRule rule(spec);
  CHECK(rule.step_limit({10, kNever}, {kNever, kNever}) == kNever);
  CHECK(rule.step_limit({10, 21}, {kNever, kNever}) == 32);
  CHECK(rule.step_limit({10, 21}, {5, 20}) == 30);
  CHECK(rule.step_limit(TrialBound{25, {10, 21}}, {kNever, kNever}) == 25);
  spec.censor = false;
  CHECK(CensorRule(spec).step_limit({10, 21}, {5, 5}) == kNever);
}

TEST_CASE("known answers: cut, censored, infeasible, complete") {
  StudySpec spec = queue_spec(4, 100, kOneGoal);
  TrialQueue queue(spec, spec.batches[0]);
  for (int64_t id = 0; id < 4; ++id) CHECK(queue.next() == id);
  CHECK_FALSE(queue.next());
  queue.ended(summary(3, TrialStatus::kCensored, {0, 10, 20, 30, 40}, 40));  // Reached its goal at 40.
  CHECK(queue.take_final().empty());
  CHECK(queue.bound(0).best[0] == kNever);  // A higher id does not bound a lower one.
  queue.ended(summary(1, TrialStatus::kInfeasible, {0, 10, 20}, kNever));
  CHECK(queue.next() == 4);  // In its place.
  CHECK(queue.bound(4).best[0] == 40);
  queue.ended(summary(0, TrialStatus::kCensored, {0, 10, 20, 30}, 30));
  std::vector<FinalTrial> decided = queue.take_final();
  REQUIRE(decided.size() == 2);
  CHECK(decided[0].status == TrialStatus::kComplete);  // Its own goal ended it.
  CHECK(decided[1].status == TrialStatus::kInfeasible);
  CHECK(queue.bound(2).best[0] == 30);
  queue.ended(summary(2, TrialStatus::kInfeasible, {0, 10, 20, 30, 40, 50}, kNever));  // Diverged after 50; cut at 30 it counts.
  decided = queue.take_final();
  REQUIRE(decided.size() == 2);
  CHECK(decided[0].status == TrialStatus::kCensored);
  CHECK(decided[0].steps == 30);
  CHECK(decided[0].num_measurements == 4);
  CHECK(decided[1].id == 3);
  CHECK(decided[1].status == TrialStatus::kCensored);  // It reached its goal at 40, but is cut at 30.
  CHECK(queue.num_kept() == 3);
  CHECK_FALSE(queue.done());
  queue.ended(summary(4, TrialStatus::kComplete, {0, 10, 20, 30, 40, 100}, kNever));
  CHECK(queue.take_final().size() == 1);
  CHECK(queue.done());
  CHECK(queue.bound(5).stop_at == 0);
}

TEST_CASE("a space in which everything diverges ends") {
  StudySpec spec = queue_spec(3, 100, kOneGoal);
  spec.max_draws_factor = 4;
  TrialQueue queue(spec, spec.batches[0]);
  int64_t drawn = 0;
  while (const auto id = queue.next()) {
    ++drawn;
    queue.ended(summary(*id, TrialStatus::kInfeasible, {0}, kNever));
    queue.take_final();
  }
  CHECK(drawn == 12);
  CHECK(queue.done());
  CHECK(queue.num_kept() == 0);
}

TEST_CASE("a store with a gap is refused") {
  StudySpec spec = queue_spec(3, 100, kOneGoal);
  TrialQueue queue(spec, spec.batches[0]);
  CHECK_THROWS_AS(queue.restore(summary(1, TrialStatus::kComplete, {0, 100}, kNever)), Error);
}

TEST_CASE("what is stored depends neither on the order, nor on the number of workers, nor on kills") {
  int num_cut = 0, num_restarts = 0, num_infeasible = 0;
  for (const double margin : {1.0, 1.7}) {
    for (const auto& goals : {kOneGoal, kTwoMetrics}) {
      for (uint64_t world = 0; world < 12; ++world) {
        StudySpec spec = queue_spec(1 + static_cast<int64_t>(world % 9), 2000, goals);
        spec.censor_margin = margin;
        const QueueRun expected = run_queue(spec, world, 1, 1);
        CAPTURE(world);
        for (uint64_t order = 2; order < 8; ++order) {
          const int workers = 1 + static_cast<int>(order % 5);
          const QueueRun run = run_queue(spec, world, workers, order, order % 2 ? 0.01 : 0, order % 3 == 0);
          REQUIRE(equal_trials(run.stored, expected.stored));
          num_restarts += run.num_restarts;
        }
        for (const Trial& trial : expected.stored) {
          num_cut += trial.status == TrialStatus::kCensored;
          num_infeasible += trial.status == TrialStatus::kInfeasible;
        }
      }
    }
  }
  CHECK(num_cut > 50);
  CHECK(num_infeasible > 50);
  CHECK(num_restarts > 100);
}

TEST_CASE("the minimum is that of whole budgets over the same points, for less work") {
  int64_t censored_steps = 0, full_steps = 0;
  for (uint64_t world = 100; world < 130; ++world) {
    StudySpec spec = queue_spec(15, 3000, kTwoMetrics);
    const QueueRun censored = run_queue(spec, world, 3, world);
    spec.censor = false;
    const QueueRun full = run_queue(spec, world, 3, world);
    // A trial that diverges after it was cut counts in one and not in the other: compare over points that count in both.
    std::vector<Trial> a, b;
    for (const Trial& one : censored.stored)
      for (const Trial& other : full.stored)
        if (one.id == other.id && one.status != TrialStatus::kInfeasible && other.status != TrialStatus::kInfeasible)
          a.push_back(one), b.push_back(other);
    bool same_points = a.size() == 15;
    if (!same_points) continue;
    for (const GoalSpec& goal : {spec.goals[0], spec.goals[1]}) CHECK(fewest_steps(a, goal) == fewest_steps(b, goal));
    censored_steps += censored.trained_steps;
    full_steps += full.trained_steps;
  }
  for (uint64_t world = 200; world < 210; ++world) {
    StudySpec spec = queue_spec(15, 3000, kOneGoal);
    const QueueRun censored = run_queue(spec, world, 2, world);
    int64_t least = kNever;
    for (const Trial& one : censored.stored) {  // The same points without any censoring.
      if (one.status == TrialStatus::kInfeasible) continue;
      CurveTrial whole(spec, world, one.id);
      StudySpec off = spec;
      off.censor = false;
      CurveTrial uncut(off, world, one.id);
      while (!uncut.advance({kNever, {kNever}})) {
      }
      for (const Measurement& measurement : uncut.trial().measurements)
        if (spec.goals[0].reached(measurement)) least = std::min(least, measurement.step);
      full_steps += uncut.trial().steps;
    }
    censored_steps += censored.trained_steps;
    CHECK(fewest_steps(censored.stored, spec.goals[0]) == least);
  }
  CHECK(censored_steps * 2 < full_steps);
}

TEST_CASE("more trials are asked for later: the first ones stay as they are") {
  StudySpec spec = queue_spec(4, 1000, kOneGoal);
  const QueueRun few = run_queue(spec, 7, 2, 1);
  spec.batches[0].num_trials = 9;
  const QueueRun many = run_queue(spec, 7, 3, 2);
  REQUIRE(many.stored.size() > few.stored.size());
  CHECK(equal_trials({many.stored.begin(), many.stored.begin() + static_cast<int64_t>(few.stored.size())}, few.stored));
}

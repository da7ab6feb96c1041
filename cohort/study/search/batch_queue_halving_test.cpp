#include "cohort/study/search/batch_queue.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/synthetic_trials.h"

using namespace cohort;
using namespace cohort::study;

namespace {

StudySpec halving_spec(int64_t num_trials, double goal) {
  StudySpec spec = queue_spec(num_trials, 900, {{kValLoss, goal}});
  spec.halving = true;
  return spec;
}

int64_t count_steps(const std::vector<Trial>& trials, int64_t from, int64_t to) {
  return std::count_if(trials.begin(), trials.end(), [&](const Trial& trial) {
    return trial.status != TrialStatus::kInfeasible && trial.steps >= from && trial.steps < to;
  });
}

}  // namespace

TEST_CASE("a third of a third reaches the budget, the best ones") {
  // Without divergence: a goal that no one reaches, and a world in which the first 18 ids that count are known.
  const StudySpec spec = halving_spec(18, 1e-9);
  int seen = 0;
  for (uint64_t world = 0; world < 6; ++world) {
    const QueueRun run = run_queue(spec, world, 1, 1);
    const int64_t late = std::count_if(run.stored.begin(), run.stored.end(),
                                       [](const Trial& trial) { return trial.status == TrialStatus::kInfeasible && trial.steps > 110; });
    CHECK(count_steps(run.stored, 100, 300) == 12);
    if (late > 0) continue;  // A survivor diverged: it is not replaced.
    ++seen;
    CHECK(count_steps(run.stored, 300, 900) == 4);
    CHECK(count_steps(run.stored, 900, 901) == 2);
    double worst_kept = 0, best_cut = 1;
    for (const Trial& trial : run.stored) {
      if (trial.status == TrialStatus::kInfeasible) continue;
      const auto at = std::find_if(trial.measurements.begin(), trial.measurements.end(), [](const auto& one) { return one.step >= 100; });
      REQUIRE(at != trial.measurements.end());
      (trial.steps >= 300 ? worst_kept : best_cut) =
          trial.steps >= 300 ? std::max(worst_kept, at->values[kValLoss]) : std::min(best_cut, at->values[kValLoss]);
      CHECK(trial.status == (trial.steps == 900 ? TrialStatus::kComplete : TrialStatus::kCensored));
    }
    CHECK(worst_kept <= best_cut);
  }
  CHECK(seen > 0);
}

TEST_CASE("halving, too, depends on nothing but the trials") {
  for (const double goal : {1e-9, 0.2, 0.6}) {
    for (uint64_t world = 0; world < 8; ++world) {
      const StudySpec spec = halving_spec(1 + static_cast<int64_t>(world) * 2, goal);
      const QueueRun expected = run_queue(spec, world, 1, 1);
      for (uint64_t order = 2; order < 7; ++order) {
        const QueueRun run = run_queue(spec, world, static_cast<int>(order), order, order % 2 ? 0.01 : 0);
        REQUIRE(equal_trials(run.stored, expected.stored));
      }
    }
  }
}

TEST_CASE("a trial that reached its goal is complete and not run again") {
  const StudySpec spec = halving_spec(9, 0.6);
  const QueueRun run = run_queue(spec, 3, 2, 5);
  int reached = 0;
  for (const Trial& trial : run.stored) {
    if (trial.status != TrialStatus::kComplete || trial.steps == 900) continue;
    ++reached;
    CHECK(spec.goals[0].reached(trial.measurements.back()));
  }
  CHECK(reached > 0);
}

TEST_CASE("a kill between two of the stored trials loses none") {
  const StudySpec spec = halving_spec(9, 1e-9);
  const QueueRun whole = run_queue(spec, 4, 1, 1);
  const CensorRule rule(spec);
  HalvingQueue queue(spec, spec.batches[0]);
  const size_t half = whole.stored.size() / 2;
  for (size_t i = 0; i < half; ++i) queue.restore(summarise(whole.stored[i], rule, kValLoss));
  CHECK_FALSE(queue.done());
  for (size_t i = half; i < whole.stored.size(); ++i) queue.ended(summarise(whole.stored[i], rule, kValLoss));  // Their files.
  const auto decided = queue.take_final();
  CHECK(decided.size() == whole.stored.size() - half);
  CHECK(queue.done());
  HalvingQueue all(spec, spec.batches[0]);
  for (const Trial& trial : whole.stored) all.restore(summarise(trial, rule, kValLoss));
  CHECK(all.done());
}

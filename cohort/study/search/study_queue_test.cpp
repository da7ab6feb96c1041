#include "cohort/study/search/study_queue.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/support/synthetic_trials.h"

using namespace cohort;
using namespace cohort::study;

namespace {

StudySpec spec_of(const std::vector<int64_t>& batch_sizes) {
  StudySpec spec;
  spec.data = "fashion-mnist";
  spec.goals = {{kValLoss, 0.2}};
  for (const int64_t size : batch_sizes) spec.batches.push_back({.batch_size = size, .num_trials = 3, .train_steps = 100, .space = {}});
  return spec;
}

TrialSummary ended(int64_t id, int64_t steps) { return {id, TrialStatus::kComplete, steps, {kNever}, {0, steps}, {1, 1}}; }

}  // namespace

TEST_CASE("a team is as large as the batch needs, as far as there are ranks") {
  StudySpec spec = spec_of({8});
  spec.max_batch_per_worker = 100;
  CHECK(team_size(spec, 1, 4) == 1);
  CHECK(team_size(spec, 100, 4) == 1);
  CHECK(team_size(spec, 101, 4) == 2);
  CHECK(team_size(spec, 250, 4) == 3);
  CHECK(team_size(spec, 100'000, 4) == 4);
  CHECK(team_size(spec, 100'000, 1) == 1);
  spec.data = "noisy-quadratic";
  CHECK(team_size(spec, 100'000, 4) == 1);
}

TEST_CASE("phases by rising teams, and none is begun before the one before is done") {
  StudySpec spec = spec_of({8, 64, 512});
  spec.max_batch_per_worker = 64;
  StudyQueue queue(spec, 4);
  std::vector<int> phases;
  std::map<int64_t, int> trials;
  while (const auto phase = queue.phase()) {
    phases.push_back(*phase);
    const auto pick = queue.next();
    REQUIRE(pick);
    CHECK(team_size(spec, spec.batches[pick->batch].batch_size, 4) == *phase);
    ++trials[spec.batches[pick->batch].batch_size];
    queue.ended(pick->batch, ended(pick->id, 100));
    queue.batch(pick->batch).take_final();
  }
  CHECK(phases == std::vector<int>{1, 1, 1, 1, 1, 1, 4, 4, 4});
  CHECK(trials == std::map<int64_t, int>{{8, 3}, {64, 3}, {512, 3}});
  CHECK_FALSE(queue.next());
  CHECK(queue.cost_left() == 0);
}

TEST_CASE("workers spread over the batch sizes, the dearest first, then help each other") {
  StudySpec spec = spec_of({1, 8, 64});
  StudyQueue queue(spec, 9);
  std::vector<size_t> order;
  while (const auto pick = queue.next()) order.push_back(pick->batch);
  CHECK(order == std::vector<size_t>{2, 1, 0, 2, 1, 0, 2, 1, 0});
}

TEST_CASE("what is left becomes less, and what trials used of their budgets is looked at") {
  StudySpec spec = spec_of({8});
  StudyQueue queue(spec, 1);
  const double all = queue.cost_left();
  CHECK(all == queue.cost(0, 300));
  const auto pick = queue.next();
  queue.ended(pick->batch, ended(pick->id, 100));
  queue.batch(0).take_final();
  CHECK(queue.cost_left() == queue.cost(0, 200));
  const auto second = queue.next();
  queue.lost(*second);
  CHECK(queue.next()->id == second->id);
}

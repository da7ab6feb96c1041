#include "cohort/schedule/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "cohort/base/fail.h"
#include "tests/support/errors.h"
#include "tests/support/naive_machine.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

std::string refusal(const Schedule& schedule) {
  return error_or_none([&] { check_schedule(schedule); });
}

/// Where `action` is on `rank`.
size_t find(const Schedule& schedule, int rank, const std::string& action) {
  for (size_t i = 0; i < schedule.actions[rank].size(); ++i)
    if (action_text(schedule.actions[rank][i]) == action) return i;
  FAIL("no ", action);
  return 0;
}

Schedule with_transfers(const std::string& name, int p, int m, std::vector<std::pair<int, int>> edges = {}) {
  Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m, .edges = std::move(edges)});
  add_transfers(schedule);
  return schedule;
}

/// The checker and the simulated execution must agree, and refusals must name the action.
void compare(const Schedule& schedule, int& num_refused) {
  const std::string text = refusal(schedule);
  REQUIRE(NaiveMachine(schedule).runs() == text.empty());
  if (text.empty()) return;
  ++num_refused;
  CAPTURE(text);
  REQUIRE(contains(text, "rank "));
  REQUIRE(contains(text, ", action "));
  REQUIRE(contains(text, "("));
}

/// Every action dropped, doubled, moved to the next rank, to the front and to the end, and swapped with the next.
void mutate_everywhere(const Schedule& valid) {
  int num_refused = 0, num_mutants = 0;
  const auto attempt = [&](const auto& mutate) {
    Schedule mutant = valid;
    mutate(mutant.actions);
    if (mutant.actions == valid.actions) return;
    ++num_mutants;
    compare(mutant, num_refused);
  };
  using Actions = std::vector<std::vector<Action>>;
  const int p = valid.num_ranks();
  for (int rank = 0; rank < p; ++rank)
    for (size_t i = 0; i < valid.actions[rank].size(); ++i) {
      const Action action = valid.actions[rank][i];
      CAPTURE(valid.name);
      CAPTURE(rank);
      CAPTURE(action_text(action));
      const int before = num_refused;
      attempt([&](Actions& actions) { actions[rank].erase(actions[rank].begin() + i); });
      attempt([&](Actions& actions) { actions[rank].push_back(action); });
      attempt([&](Actions& actions) { actions[(rank + 1) % p].insert(actions[(rank + 1) % p].begin(), action); });
      REQUIRE(num_refused == before + 3);  // Nothing may be missing or twice.
      attempt([&](Actions& actions) {
        actions[rank].erase(actions[rank].begin() + i);
        std::vector<Action>& other = actions[(rank + 1) % p];
        other.insert(other.begin() + std::min(i, other.size()), action);
      });
      attempt([&](Actions& actions) { std::rotate(actions[rank].begin(), actions[rank].begin() + i, actions[rank].begin() + i + 1); });
      attempt([&](Actions& actions) { std::rotate(actions[rank].begin() + i, actions[rank].begin() + i + 1, actions[rank].end()); });
      if (i + 1 < valid.actions[rank].size()) attempt([&](Actions& actions) { std::swap(actions[rank][i], actions[rank][i + 1]); });
    }
  CHECK(num_refused > num_mutants / 2);
}

TEST_CASE("mutants of valid schedules are refused where they do not run, and only there") {
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-v"}) {
    mutate_everywhere(make_schedule(name, {.num_ranks = 2, .num_micro_batches = 3}));
    mutate_everywhere(with_transfers(name, 2, 3));
  }
  mutate_everywhere(with_transfers("1f1b", 4, 2, {{0, 1}, {0, 3}, {1, 2}, {2, 3}}));
}

TEST_CASE("random reorderings are refused where they do not run, and only there") {
  std::mt19937 random(7);
  int num_refused = 0;
  for (const char* name : {"1f1b", "zb-h1", "interleaved:2"})
    for (const bool transfers : {false, true}) {
      const Schedule valid = transfers ? with_transfers(name, 3, 4) : make_schedule(name, {.num_ranks = 3, .num_micro_batches = 4});
      for (int round = 0; round < 150; ++round) {
        Schedule mutant = valid;
        for (int swaps = 0; swaps < 2; ++swaps) {
          std::vector<Action>& actions = mutant.actions[random() % mutant.actions.size()];
          const size_t i = random() % actions.size(), j = std::min(actions.size() - 1, i + random() % 4);
          std::swap(actions[i], actions[j]);
        }
        compare(mutant, num_refused);
      }
    }
  CHECK(num_refused > 300);
  CHECK(num_refused < 900);
}

TEST_CASE("what is wrong is said with rank, position and action") {
  const Schedule plain = make_schedule("1f1b", {.num_ranks = 2, .num_micro_batches = 3});  // F F B F B B and F B F B F B.
  const Schedule valid = with_transfers("1f1b", 2, 3);
  const auto mutant = [](Schedule schedule, const auto& mutate) {
    mutate(schedule.actions);
    return refusal(schedule);
  };
  CHECK(contains(mutant(plain, [](auto& a) { a[1].erase(a[1].begin()); }),
                 "rank 1, action 0 (B1.0): no rank does the forward of stage 1, micro-batch 0"));
  CHECK(contains(mutant(plain, [](auto& a) { a[1].pop_back(); }), "rank 1, action 4 (F1.2): no rank does the backward"));
  CHECK(contains(mutant(plain, [](auto& a) { a[0].push_back(a[1][2]); }),
                 "rank 1, action 2 (F1.1) is done already by rank 0, action 6 (F1.1)"));
  CHECK(contains(mutant(plain, [](auto& a) { std::swap(a[1][0], a[1][1]); }),
                 "rank 1, action 0 (B1.0) comes before what it needs: rank 1, action 1 (F1.0)"));
  CHECK(contains(
      mutant(plain, [](auto& a) { std::swap(a[0][1], a[0][2]), std::swap(a[1][1], a[1][2]); }),
      "deadlock: rank 0, action 1 (B0.0) waits for rank 1, action 2 (B1.0), and rank 1 does not get past rank 1, action 1 (F1.1)"));
  CHECK(contains(mutant(plain, [](auto& a) { a[0][0].stage = 2; }), "rank 0, action 0 (F2.0): there is no stage 2"));
  CHECK(contains(mutant(plain, [](auto& a) { a[0][0].micro_batch = -1; }), "rank 0, action 0 (F0.-1): there is no micro-batch -1"));
  CHECK(contains(mutant(plain, [](auto& a) { a[0][2].kind = ActionKind::kBackwardInput; }),
                 "rank 0, action 2 (I0.0): no rank does the weight part"));
  CHECK(contains(mutant(plain, [](auto& a) { a[0].push_back({ActionKind::kBackwardWeight, 0, 0}); }),
                 "rank 0, action 6 (W0.0): rank 0, action 2 (B0.0) does this part already"));
  CHECK(contains(mutant(plain, [](auto& a) { a[1].push_back(a[0].back()), a[0].pop_back(); }),
                 "rank 1, action 6 (B0.2) needs on its own rank what is done by rank 0, action 3 (F0.2)"));
  CHECK(contains(mutant(valid, [](auto& a) { a[0].erase(a[0].begin() + 1); }),
                 "rank 1, action 0 (RF1.0<0) needs SF0.0>1, which no rank does"));
  CHECK(contains(mutant(valid, [](auto& a) { a[1].erase(a[1].begin()); }), "rank 0, action 1 (SF0.0>1): no rank receives it (RF1.0<0)"));
  const size_t first = find(valid, 0, "SF0.0>1"), second = find(valid, 0, "SF0.1>1");
  CHECK(contains(mutant(valid, [&](auto& a) { std::rotate(a[0].begin() + first, a[0].begin() + first + 1, a[0].begin() + second + 1); }),
                 "messages between two ranks are received in the order in which they are sent"));
  CHECK(contains(mutant(valid, [](auto& a) { a[0][1].peer = 0; }), "rank 0, action 1 (SF0.0>0): stage 0 hands nothing to stage 0"));
}

TEST_CASE("sizes that do not fit are refused before anything is built") {
  Schedule schedule = make_schedule("gpipe", {.num_ranks = 2, .num_micro_batches = 2});
  const auto with = [&](const auto& change) {
    Schedule changed = schedule;
    change(changed);
    return refusal(changed);
  };
  CHECK(contains(with([](Schedule& s) { s.num_stages = 1'000'000'000; }), "stages"));
  CHECK(contains(with([](Schedule& s) { s.num_stages = 4096, s.num_micro_batches = 4096; }), "at least 33554432"));
  CHECK(contains(with([](Schedule& s) { s.actions.clear(); }), "0 ranks"));
  CHECK(contains(with([](Schedule& s) { s.edges = {{0, 5}}; }), "edge (0, 5)"));
  CHECK(contains(with([](Schedule& s) { s.num_micro_batches = 3; }), "no rank does anything for stage 0, micro-batch 2"));
  CHECK_THROWS_AS(ranks_of_stages({}), Error);
}

}  // namespace
}  // namespace cohort

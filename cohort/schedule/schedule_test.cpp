#include "cohort/schedule/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"
#include "tests/support/errors.h"
#include "tests/support/naive_machine.h"

namespace cohort {
namespace {

std::string refusal(const std::string& name, const PipelineShape& shape) {
  return error_or_none([&] { make_schedule(name, shape); });
}

TEST_CASE("every schedule of every small shape is valid, with and without transfers") {
  int num_schedules = 0;
  for_each_small_schedule([&](const std::string& name, int p, int m) {
    CAPTURE(name);
    CAPTURE(p);
    CAPTURE(m);
    Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
    REQUIRE(schedule.name == name);
    REQUIRE(schedule.num_ranks() == p);
    REQUIRE(schedule.num_stages == num_stages_of(name, p));
    const ScheduleFacts facts = check_schedule(schedule);
    REQUIRE(NaiveMachine(schedule).runs());
    add_transfers(schedule);
    const ScheduleFacts complete = check_schedule(schedule);
    REQUIRE(NaiveMachine(schedule).runs());
    REQUIRE(complete.peak_stash == facts.peak_stash);
    int num_sends = 0;
    for (const auto& rank : schedule.actions)
      for (const Action& action : rank) num_sends += action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
    REQUIRE(facts.num_messages == num_sends);
    REQUIRE(complete.num_messages == num_sends);
    // A chain over v ranks' worth of stages; the two stages at the foot of the V share a rank.
    REQUIRE(num_sends == (p == 1 ? 0 : 2 * m * (schedule.num_stages - 1 - (name == "zb-v"))));
    ++num_schedules;
  });
  CHECK(num_schedules == 640);
}

TEST_CASE("stash: gpipe all, 1f1b min(m, p - i), zero bubble as much as 1f1b's first rank") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 20; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const auto stash = [&](const std::string& name) {
        return check_schedule(make_schedule(name, {.num_ranks = p, .num_micro_batches = m}));
      };
      REQUIRE(stash("gpipe").peak_stash == std::vector<int>(p, m));
      REQUIRE(stash("bfs:3").peak_stash == std::vector<int>(p, 3 * m));
      std::vector<int> expected;
      for (int i = 0; i < p; ++i) expected.push_back(std::min(m, p - i));
      REQUIRE(stash("1f1b").peak_stash == expected);
      const ScheduleFacts h1 = stash("zb-h1"), v = stash("zb-v");
      REQUIRE(h1.peak_input_stash == expected);
      REQUIRE(*std::max_element(h1.peak_stash.begin(), h1.peak_stash.end()) == std::min(m, p));
      REQUIRE(*std::max_element(v.peak_stash.begin(), v.peak_stash.end()) <= 2 * std::min(m, p));
      if (m >= 2 * p - 1) REQUIRE(v.peak_stash == std::vector<int>(p, 2 * p));
      if (m % p == 0 && p > 1 && m > p) REQUIRE(stash("interleaved:2").peak_stash[0] == 3 * p - 1);
    }
}

TEST_CASE("large schedules are made and checked quickly") {
  for (const char* name : {"1f1b", "interleaved:3", "zb-v"}) {
    const Schedule schedule = make_schedule(name, {.num_ranks = 16, .num_micro_batches = 100});
    CHECK_NOTHROW(check_schedule(schedule));
  }
}

TEST_CASE("skip edges do not change what a rank computes") {
  const std::vector<std::pair<int, int>> edges = {{0, 1}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "bfs:2", "zb-h1", "zb-v"}) {
    CAPTURE(name);
    PipelineShape shape = {.num_ranks = 4 / (num_stages_of(name, 1)), .num_micro_batches = 5};
    const Schedule chain = make_schedule(name, shape);
    shape.edges = edges;
    const Schedule skipping = make_schedule(name, shape);
    CHECK(skipping.edges == edges);
    CHECK(skipping.actions == chain.actions);
    CHECK_NOTHROW(check_schedule(skipping));
  }
}

TEST_CASE("names: a number where one belongs, the nearest name, sizes in bounds") {
  CHECK(schedule_names() == std::vector<std::string>{"gpipe", "1f1b", "interleaved:V", "bfs:V", "zb-h1", "zb-v"});
  CHECK(num_stages_of("interleaved:3", 4) == 12);
  CHECK(num_stages_of("zb-v", 4) == 8);
  CHECK(make_schedule("interleaved", {.num_ranks = 2, .num_micro_batches = 2}).name == "interleaved:2");
  CHECK(make_schedule("1f1b", {.num_ranks = 2, .num_micro_batches = 2, .chunks = 7}).num_stages == 2);
  CHECK(refusal("1f1", {}).find("did you mean '1f1b'?") != std::string::npos);
  CHECK(refusal("interleave:2", {}).find("did you mean 'interleaved'?") != std::string::npos);
  CHECK(refusal("gpipe:2", {}).find("takes no number") != std::string::npos);
  for (const char* name : {"bfs:0", "bfs:", "bfs:x", "bfs:2:2", "bfs:99999999999"})
    CHECK(refusal(name, {}).find("after the colon") != std::string::npos);
  CHECK_FALSE(refusal("gpipe", {.num_ranks = 0}).empty());
  CHECK_FALSE(refusal("gpipe", {.num_micro_batches = 0}).empty());
  CHECK_FALSE(refusal("gpipe", {.num_ranks = 5000}).empty());
  CHECK_FALSE(refusal("bfs:4096", {.num_ranks = 2}).empty());
  CHECK(refusal("1f1b", {.num_ranks = 2, .edges = {{1, 0}}}).find("edge (1, 0)") != std::string::npos);
  CHECK(refusal("1f1b", {.num_ranks = 3, .edges = {{1, 2}, {0, 1}}}).find("sorted") != std::string::npos);
  CHECK(refusal("1f1b", {.num_ranks = 2, .edges = {{0, 2}}}).find("edge (0, 2)") != std::string::npos);
}

TEST_CASE("known orders") {
  const auto text = [](const std::string& name, int p, int m, int rank) {
    std::string out;
    const Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
    for (const Action& action : schedule.actions[rank]) out += action_text(action) + " ";
    return out;
  };
  CHECK(text("gpipe", 2, 2, 1) == "F1.0 F1.1 B1.0 B1.1 ");
  CHECK(text("1f1b", 2, 3, 0) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 ");
  CHECK(text("1f1b", 2, 3, 1) == "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 ");
  CHECK(text("bfs:2", 2, 2, 0) == "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1 ");
  CHECK(text("interleaved:2", 2, 2, 1) == "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1 ");
  CHECK(text("zb-h1", 2, 2, 1) == "F1.0 I1.0 F1.1 I1.1 W1.0 W1.1 ");
  CHECK(text("zb-v", 1, 2, 0) == "F0.0 F1.0 I1.0 W1.0 F0.1 I0.0 W0.0 F1.1 I1.1 W1.1 I0.1 W0.1 ");
}

}  // namespace
}  // namespace cohort

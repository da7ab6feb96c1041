#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/scheduler.h"
#include "tests/support/naive_machine.h"

namespace cohort {
namespace {

std::string text(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& action : actions) out += action_text(action) + " ";
  return out;
}

TEST_CASE("sends follow and receives precede what makes and needs the value") {
  Schedule schedule = make_schedule("zb-h1", {.num_ranks = 2, .num_micro_batches = 1});
  add_transfers(schedule);
  CHECK(text(schedule.actions[0]) == "F0.0 SF0.0>1 RB0.0<1 I0.0 W0.0 ");
  CHECK(text(schedule.actions[1]) == "RF1.0<0 F1.0 I1.0 SB1.0>0 W1.0 ");
  const Schedule before = schedule;
  add_transfers(schedule);
  CHECK(schedule.actions == before.actions);
}

TEST_CASE("a skip connection is sent directly, and nothing is sent between stages of one rank") {
  // 0 and 2 on rank 0, 1 on rank 1: the skip edge (0, 2) stays on the rank.
  Schedule schedule = make_graph_schedule({{0, 1}, {0, 2}, {1, 2}}, {{0}, {1}, {0}}, 1);
  add_transfers(schedule);
  CHECK(text(schedule.actions[0]) == "F0.0 SF0.0>1 RF2.0<1 F2.0 B2.0 SB2.0>1 RB0.0<1 B0.0 ");
  CHECK(text(schedule.actions[1]) == "RF1.0<0 F1.0 SF1.0>2 RB1.0<2 B1.0 SB1.0>0 ");
  Schedule straight = make_schedule("gpipe", {.num_ranks = 3, .num_micro_batches = 1, .edges = {{0, 1}, {0, 2}, {1, 2}}});
  add_transfers(straight);
  CHECK(text(straight.actions[0]) == "F0.0 SF0.0>1 SF0.0>2 RB0.0<1 RB0.0<2 B0.0 ");
  CHECK(text(straight.actions[2]) == "RF2.0<0 RF2.0<1 F2.0 B2.0 SB2.0>0 SB2.0>1 ");
}

TEST_CASE("what is sent first is received first, even where it is needed later") {
  // Rank 0 has the stages 0 and 1, rank 1 uses 1 (in stage 2) before 0 (in stage 3).
  Schedule schedule = {.name = "mine", .num_stages = 4, .num_micro_batches = 1, .edges = {{0, 3}, {1, 2}}};
  const auto f = [](int stage) { return Action{ActionKind::kForward, stage, 0}; };
  const auto b = [](int stage) { return Action{ActionKind::kBackward, stage, 0}; };
  schedule.actions = {{f(0), f(1), b(1), b(0)}, {f(2), f(3), b(2), b(3)}};
  add_transfers(schedule);
  CHECK(text(schedule.actions[1]) == "RF3.0<0 RF2.0<1 F2.0 F3.0 B2.0 SB2.0>1 B3.0 SB3.0>0 ");
  CHECK_NOTHROW(check_schedule(schedule));
  CHECK(NaiveMachine(schedule).runs());
}

TEST_CASE("replicas: every micro-batch goes to the rank that takes it") {
  Schedule schedule = make_graph_schedule(chain_edges(3), {{0}, {1, 2}, {3}}, 4);
  add_transfers(schedule);
  CHECK(text(schedule.actions[2]).find("F1.0") == std::string::npos);
  CHECK(text(schedule.actions[2]).find("RF1.1<0 F1.1 SF1.1>2") != std::string::npos);
  CHECK(check_schedule(schedule).num_messages == 16);
}

TEST_CASE("a schedule with a hole gets no transfers") {
  Schedule schedule = make_schedule("gpipe", {.num_ranks = 2, .num_micro_batches = 2});
  schedule.actions[1].erase(schedule.actions[1].begin());
  CHECK_THROWS_WITH_AS(add_transfers(schedule), "schedule 'gpipe': no rank does F1.0", Error);
}

}  // namespace
}  // namespace cohort

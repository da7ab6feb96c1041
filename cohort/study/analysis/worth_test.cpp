#include "cohort/study/analysis/worth.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepsToResult reached(int64_t batch_size, int64_t steps, std::optional<double> low = {}, std::optional<double> high = {}) {
  StepsToResult result{.batch_size = batch_size, .steps = steps, .trial_id = 7};
  result.low = low;
  result.high = high;
  return result;
}

/// S(B) = 200 (1 + 256 / B) at 2^3 to 2^13: steps are whole at every one.
std::vector<StepsToResult> hyperbola() {
  std::vector<StepsToResult> steps;
  for (int64_t batch = 8; batch <= 8192; batch *= 2) steps.push_back(reached(batch, 200 + 51200 / batch));
  return steps;
}

/// T(B, N) = 1 ms + 20 us x B / N + exchange x log2 N.
std::vector<StepTime> step_times(const std::vector<int>& workers, double exchange) {
  std::vector<StepTime> times;
  for (const int n : workers)
    for (int64_t batch = 8; batch <= 8192; batch *= 2)
      if (batch >= n) times.push_back({batch, n, 1e-3 + 20e-6 * static_cast<double>(batch) / n + exchange * std::log2(n)});
  return times;
}

TEST_CASE("worth: a hyperbola times an affine step has its minimum at the square root of Bc a N / b") {
  // S T = Smin (1 + Bc/B)(a + bB/N): the derivative vanishes at B^2 = Bc a N / b = 256 x 50 N: N = 1: 113, 4: 226, 16: 452, 64: 905.
  const Worth worth = worth_of_workers(hyperbola(), step_times({1, 4, 16, 64}, 0));
  REQUIRE(worth.rows.size() == 4);
  CHECK(worth.cells.size() == 11 + 11 + 10 + 8);  // A batch of 8 has no time on 16 workers.
  const int64_t expected[] = {128, 256, 512, 1024};
  for (size_t i = 0; i < 4; ++i) CHECK(worth.rows[i].best.batch_size == expected[i]);
  CHECK(worth.rows[0].best.seconds == doctest::Approx(600 * 3.56e-3));
  CHECK(worth.rows[1].best.seconds == doctest::Approx(400 * 2.28e-3));
  CHECK(worth.rows[1].speed_up == doctest::Approx(600 * 3.56 / (400 * 2.28)));
  CHECK(worth.rows[0].next_gain == doctest::Approx(1 - 400 * 2.28 / (600 * 3.56)));
  CHECK(worth.rows[3].next_gain == 0);
  // 1 -> 4 saves 35 % a doubling, 4 -> 16: 512: 300 x 1.64 of 912: 27 %, 16 -> 64: 1024: 250 x 1.32 of 492: 18 %.
  CHECK(worth.num_worth_having == 64);
  CHECK(worth_of_workers(hyperbola(), step_times({1, 4, 16, 64}, 0), 0.2).num_worth_having == 16);
  CHECK(worth_of_workers(hyperbola(), step_times({1, 4, 16, 64}, 0), 0.3).num_worth_having == 4);
  CHECK(worth_of_workers(hyperbola(), step_times({1, 4, 16, 64}, 0), 0.4).num_worth_having == 1);
}

TEST_CASE("worth: an exchange that grows with the workers makes more of them slower; best batches rise to pay for it") {
  const Worth worth = worth_of_workers(hyperbola(), step_times({1, 2, 3, 4, 8, 16}, 4e-3));
  REQUIRE(worth.rows.size() == 6);
  for (size_t i = 1; i < worth.rows.size(); ++i) CHECK(worth.rows[i].best.batch_size >= worth.rows[i - 1].best.batch_size);
  CHECK(worth.rows[0].next_gain < 0.1);
  CHECK(worth.num_worth_having == 1);
  // Every row's best is the least of its cells.
  for (const WorthRow& row : worth.rows)
    for (const WorthCell& cell : worth.cells)
      if (cell.num_workers == row.num_workers) CHECK(cell.seconds >= row.best.seconds);
}

TEST_CASE("worth: one more of many is held to its part of a doubling; a number that divides badly does not end the walk") {
  const std::vector<StepsToResult> steps = {reached(64, 100)};
  std::vector<StepTime> perfect;
  for (int n = 1; n <= 12; ++n) perfect.push_back({64, n, 0.12 / n});
  CHECK(worth_of_workers(steps, perfect, 0.45).num_worth_having == 12);
  const std::vector<StepTime> dip = {{64, 1, 0.08}, {64, 2, 0.04}, {64, 3, 0.041}, {64, 4, 0.022}, {64, 5, 0.0219}};
  CHECK(worth_of_workers(steps, dip).num_worth_having == 4);
  CHECK(worth_of_workers(steps, dip).rows[1].next_gain == doctest::Approx(-0.025));
}

TEST_CASE("worth: intervals join as independent deviations; infinite ends stay so, unknown ones add nothing") {
  const std::vector<StepTime> times = {{32, 1, 0.010, 0.008, 0.015}};
  const auto cell = [&](const StepsToResult& steps) { return worth_of_workers({steps}, times).cells.at(0); };
  const WorthCell both = cell(reached(32, 400, 300, 500));
  CHECK(both.steps == 400);
  CHECK(both.seconds == doctest::Approx(4));
  CHECK(std::log(4 / both.seconds_low) == doctest::Approx(std::hypot(std::log(4.0 / 3), std::log(1.25))));
  CHECK(std::log(both.seconds_high / 4) == doctest::Approx(std::hypot(std::log(1.25), std::log(1.5))));
  CHECK(cell(reached(32, 400, 400, kInfinity)).seconds_high == kInfinity);
  CHECK(cell(reached(32, 400)).seconds_low == doctest::Approx(3.2));
  CHECK(cell(reached(32, 400)).seconds_high == doctest::Approx(6));
  CHECK(worth_of_workers({reached(32, 400)}, {{32, 1, 0.01}}).cells.at(0).seconds_high == doctest::Approx(4));
}

TEST_CASE("worth: no times, goals not reached, batch sizes without times, ties, times that are none") {
  CHECK(worth_of_workers(hyperbola(), {}).rows.empty());
  CHECK(worth_of_workers({}, step_times({1, 2}, 0)).cells.empty());
  StepsToResult missed{.batch_size = 64};
  const Worth some = worth_of_workers({missed, reached(128, 50), reached(100, 10)}, {{64, 2, 1e-6}, {128, 2, 1e-3}});
  REQUIRE(some.rows.size() == 1);
  CHECK(some.cells.size() == 1);
  CHECK(some.rows[0].best.batch_size == 128);
  CHECK(some.rows[0].speed_up == 1);
  CHECK(some.num_worth_having == 2);  // The fewest that were measured.
  const Worth tie = worth_of_workers({reached(16, 100), reached(32, 50)}, {{32, 1, 2e-3}, {16, 1, 1e-3}});
  CHECK(tie.rows.at(0).best.batch_size == 16);
  CHECK_THROWS_WITH_AS(worth_of_workers(hyperbola(), {{8, 1, 0}}), "a step of batch 8 on 1 workers takes 0 seconds: invalid step time",
                       Error);
}

std::string complaint(const std::string& text, bool times) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "t.csv", text);
  try {
    if (times) read_step_times(folder / "t.csv");
    else read_steps_curve(folder / "t.csv");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return std::string(error.what()).substr(folder.path().size() + 1);
  }
  return "";
}

TEST_CASE("step times: written and read back to the same numbers; wrong files say where") {
  const TemporaryFolder folder;
  const std::vector<StepTime> times = {{8, 1, 1.0 / 3, 0.1, 0.7}, {8, 2, 1e-5, 1e-6, 1e-4}, {4096, 1, 3, 2, 4}};
  write_step_times(folder / "t.csv", times);
  const std::vector<StepTime> back = read_step_times(folder / "t.csv");
  REQUIRE(back.size() == times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    CHECK(back[i].batch_size == times[i].batch_size);
    CHECK(back[i].num_workers == times[i].num_workers);
    CHECK(back[i].seconds == times[i].seconds);
    CHECK(back[i].low == times[i].low);
    CHECK(back[i].high == times[i].high);
  }
  const std::string head = "batch_size,num_workers,step_seconds,step_seconds_low,step_seconds_high\n";
  CHECK(complaint("", true) ==
        "t.csv: has no rows; expected a header with batch_size,num_workers,step_seconds,step_seconds_low,step_seconds_high and a line per "
        "row");
  CHECK(complaint("batch_size,step_seconds\n8,1\n", true).starts_with("t.csv:2: no column 'num_workers'"));
  CHECK(complaint(head + "8,1,0,1,1\n", true) == "t.csv:2: step_seconds is '0', expected a positive number");
  CHECK(complaint(head + "8,1,inf,1,1\n", true) == "t.csv:2: step_seconds is 'inf', expected a positive number");
  CHECK(complaint(head + "\n8,x,1,1,1\n", true) == "t.csv:3: num_workers is 'x', expected a whole number from 1");
  CHECK(complaint(head + "8,1,1\n", true) == "t.csv:2: 3 fields, and the header has 5");
  CHECK(complaint(head + "8,1,1,1,1\n8,1,1,1,1\n", true) ==
        "t.csv:3: batch_size is '8', expected a value that no other row with 1 workers has");
  CHECK(complaint(head + "8,9999999999,1,1,1\n", true) == "t.csv:2: num_workers is '9999999999', expected at most 1048576");
}

TEST_CASE("steps curve: written and read back, with what was not reached; other columns are ignored") {
  const TemporaryFolder folder;
  Analysis analysis;
  analysis.goal = {kValError, 0.12};
  analysis.steps = {reached(8, 1234, 1000, kInfinity),
                    {.batch_size = 16, .num_kept = 20, .num_infeasible = 3, .num_stopped = 6, .num_unknown = 4},
                    reached(64, 99, 99, 120)};
  analysis.steps[0].step_before = 1200;
  analysis.steps[0].num_reached = 5;
  write_steps_curve(folder / "c.csv", analysis);
  std::string goal;
  const std::vector<StepsToResult> back = read_steps_curve(folder / "c.csv", &goal);
  CHECK(goal == "val_error<0.12");
  REQUIRE(back.size() == 3);
  CHECK(back[0].steps == 1234);
  CHECK(back[0].trial_id == 7);
  CHECK(back[0].step_before == 1200);
  CHECK(back[0].num_reached == 5);
  CHECK(back[0].low == 1000);
  CHECK(back[0].high == kInfinity);
  CHECK_FALSE(back[1].steps);
  CHECK_FALSE(back[1].low);
  CHECK(back[1].trial_id == -1);
  CHECK(back[1].num_kept == 20);
  CHECK(back[1].num_infeasible == 3);
  CHECK(back[1].num_stopped == 6);
  CHECK(back[1].num_unknown == 4);
  CHECK(back[2].high == 120);

  const std::string head =
      "goal,extra,batch_size,steps,steps_low,steps_high,trial,step_before,num_kept,num_reached,num_infeasible,num_stopped,num_unknown\n";
  CHECK(complaint(head + "val_error<0.1,x,8,10,,,3,9,20,4,0,0,0\r\n", false) == "");
  CHECK(complaint(head + "val_error<0.1,x,8,-1,,,3,9,20,4,0,0,0\n", false) == "t.csv:2: steps is '-1', expected a whole number from 0");
  CHECK(complaint(head + "g,x,8,,,,,,20,0,0,0,0\ng,x,8,,,,,,20,0,0,0,0\n", false) ==
        "t.csv:3: batch_size is '8', expected more than the 8 of the row before");
  CHECK(complaint(head + "g,x,8,5,lots,,1,4,20,1,0,0,0\n", false) == "t.csv:2: steps_low is 'lots', expected a number, inf or nothing");
  CHECK(complaint(head + "g,x,8\n", false) == "t.csv:2: 3 fields, and the header has 13");
}

}  // namespace
}  // namespace cohort::study

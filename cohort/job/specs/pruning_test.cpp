#include "cohort/job/specs/pruning.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/error.h"

namespace cohort {
namespace {

TEST_CASE("what --prune takes, and what it refuses by name") {
  CHECK(!parse_pruning(""));
  CHECK(!parse_pruning("none"));
  CHECK(parse_pruning("weight:0.9")->sparsity == 0.9);
  CHECK(parse_pruning("weight:0.9")->granularity == Pruning::Granularity::kWeight);
  CHECK(!parse_pruning("weight:0.9")->is_uniform);
  CHECK(parse_pruning("weight:0.25:uniform")->sparsity == 0.25);
  CHECK(parse_pruning("weight:0.25:uniform")->is_uniform);
  CHECK(parse_pruning("2:4")->sparsity == 0.5);
  CHECK(parse_pruning("2:4")->granularity == Pruning::Granularity::kTwoOfFour);
  for (const char* text : {"weight",
                           "weight:",
                           "weight:0",
                           "weight:1",
                           "weight:1.5",
                           "weight:-0.1",
                           "weight:nan",
                           "weight:inf",
                           "weight:a",
                           "weight:0.9:2",
                           "weight:uniform",
                           "weight::uniform",
                           "weight:0.9:uniform:uniform",
                           "2:4:uniform",
                           "wieght:0.9",
                           "0.9",
                           "2:8",
                           "1:4",
                           "channel:0.5",
                           ":",
                           "weight:0.9 "}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_pruning(text), doctest::Contains("--prune"), Error);
  }
  CHECK_THROWS_WITH(parse_pruning("wieght:0.9"), doctest::Contains("did you mean 'weight'"));
  CHECK_THROWS_WITH(parse_pruning("channel:0.5"), doctest::Contains("compress prune"));
}

TEST_CASE("the sparsity rises by the cubic law from a tenth of the steps to the end that was asked for") {
  const PruningSchedule schedule({.granularity = Pruning::Granularity::kWeight, .sparsity = 0.9}, 0.7, false, 1000);
  CHECK(schedule.begin() == 99);
  CHECK(schedule.end() == 699);
  CHECK(schedule.interval() == 12);
  CHECK(!schedule.has_begun(98));
  CHECK(schedule.has_begun(99));
  double last = 0, first_rise = 0, last_rise = 0;
  int num_prunings = 0;
  for (int64_t number = 0; number < 1000; ++number) {
    const auto sparsity = schedule.at(number);
    if (!sparsity) continue;
    CHECK(schedule.has_begun(number));
    CHECK(*sparsity >= last);
    if (number <= schedule.end()) ++num_prunings;
    last_rise = *sparsity - last;
    if (first_rise == 0 && last > 0) first_rise = last_rise;
    if (number == 399) {  // Equation 1, halfway: 1 - (1 - 301 / 601)^3.
      const double left = 1 - 301.0 / 601;
      CHECK(*sparsity == doctest::Approx(0.9 * (1 - left * left * left)));
    }
    last = *sparsity;
  }
  CHECK(num_prunings == 51);
  CHECK(last == 0.9);
  CHECK(*schedule.at(schedule.end()) == 0.9);
  CHECK(first_rise > 5 * last_rise);  // Fast where many weights are superfluous, slow at the end.
}

TEST_CASE("short runs prune in every step, and reach the sparsity whatever their length") {
  const Pruning pruning{.granularity = Pruning::Granularity::kTwoOfFour, .sparsity = 0.5};
  for (const int64_t steps : {1, 2, 3, 5, 10, 47, 100, 1000, 123457})
    for (const double until : {0.01, 0.1, 0.5, 0.7, 1.0})
      for (const bool has_weights : {false, true}) {
        CAPTURE(steps);
        CAPTURE(until);
        const PruningSchedule schedule(pruning, until, has_weights, steps);
        CHECK(schedule.begin() >= 0);
        CHECK(schedule.begin() <= schedule.end());
        CHECK(schedule.end() < steps);
        CHECK(schedule.interval() >= 1);
        CHECK(schedule.at(schedule.begin()).has_value());
        CHECK(schedule.at(schedule.end()).value() == 0.5);
        if (has_weights) CHECK(schedule.begin() == 0);
      }
}

}  // namespace
}  // namespace cohort

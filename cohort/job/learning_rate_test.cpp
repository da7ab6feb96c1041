#include "cohort/job/learning_rate.h"

#include <doctest/doctest.h>

#include <cmath>

namespace cohort {
namespace {

TEST_CASE("learning-rate schedules") {
  Config config;
  config.lr = 2;
  config.warmup_steps = 4;
  CHECK(learning_rate(config).at(0, 104) == doctest::Approx(0.5));
  CHECK(learning_rate(config).at(3, 104) == doctest::Approx(2));
  CHECK(learning_rate(config).at(80, 104) == doctest::Approx(2));
  config.schedule_lr = "linear";
  config.lr_end_factor = 0.1;
  CHECK(learning_rate(config).at(4, 104) == doctest::Approx(2));
  CHECK(learning_rate(config).at(54, 104) == doctest::Approx(1.1));
  CHECK(learning_rate(config).at(104, 104) == doctest::Approx(0.2));
  config.schedule_lr = "cosine";
  CHECK(learning_rate(config).at(54, 104) == doctest::Approx(1.1));
  CHECK(learning_rate(config).at(29, 104) == doctest::Approx(2 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)))));
  config.decay_steps = 20;  // Ends there, and stays.
  CHECK(learning_rate(config).at(14, 104) == doctest::Approx(1.1));
  CHECK(learning_rate(config).at(24, 104) == doctest::Approx(0.2));
  CHECK(learning_rate(config).at(90, 104) == doctest::Approx(0.2));
}

}  // namespace
}  // namespace cohort

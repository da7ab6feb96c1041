#include "cohort/train/step/step_trace.h"

#include <doctest/doctest.h>

namespace cohort {

TEST_CASE("the steps between exchanges: losses by samples, means of times, the last one's rate") {
  LocalRound round;
  for (int step = 1; step <= 3; ++step) {
    round.add_loss(step, /*own_samples=*/2 * step, /*all_samples=*/10);
    round.add({.step = step,
               .step_seconds = 1.0 * step,
               .compute_seconds = 0.5,
               .exchange_seconds = step == 3 ? 3.0 : 0.0,
               .learning_rate = 0.1 * step});
  }
  round.add_loss(1e30, 0, 10);  // A worker without samples has no loss.
  CHECK(round.loss_sum() == 2 + 8 + 18);
  CHECK(round.all_samples() == 40);
  const LocalRound::Total total = round.take();
  CHECK(total.num_steps == 3);
  CHECK(total.own_samples == 12);
  CHECK(total.mean.step == 3);
  CHECK(total.mean.step_seconds == 2);
  CHECK(total.mean.compute_seconds == 0.5);
  CHECK(total.mean.exchange_seconds == 1);
  CHECK(total.mean.learning_rate == doctest::Approx(0.3));
  CHECK(total.mean.samples_per_second == doctest::Approx(40.0 / 6));
  round.add_loss(7, 1, 2);  // Nothing of the round before is left.
  round.add({.step = 4, .step_seconds = 4});
  CHECK(round.loss_sum() == 7);
  CHECK(round.take().mean.step_seconds == 4);
}

}  // namespace cohort

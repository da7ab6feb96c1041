#include "cohort/tune/step_times.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/world/launch.h"
#include "tests/support/skip.h"

namespace cohort {
namespace {

study::StudySpec small_spec() {
  study::StudySpec spec;
  spec.data = "synthetic:1x8x8,classes=4,samples=512";
  spec.model = "fc:hidden=16";
  spec.optimizer = "momentum";
  spec.max_batch_per_worker = 64;
  return spec;
}

TEST_CASE("step times: every batch size on 1 and 2 workers; what does not go round is left out; nothing is left running") {
  REQUIRE(num_threads_of_process() == 1);
  const int cores = num_usable_cores(), most = std::min(2, cores);
  const std::vector<study::StepTime> times =
      measure_step_times(small_spec(), {1, 7, 64}, {.max_workers = most, .cell_seconds = 0.05, .backend = "shm"});
  std::vector<std::pair<int64_t, int>> cells, expected = {{1, 1}, {7, 1}, {64, 1}};
  if (most == 2) expected = {{1, 1}, {7, 1}, {7, 2}, {64, 1}, {64, 2}};
  for (const study::StepTime& time : times) {
    cells.emplace_back(time.batch_size, time.num_workers);
    CHECK(time.low > 0);
    CHECK(time.low <= time.seconds);
    CHECK(time.seconds <= time.high);
    CHECK(time.high < 5);
  }
  CHECK(cells == expected);
  CHECK(num_threads_of_process() == 1);
}

TEST_CASE("step times: micro-batches; batch norm keeps groups of samples on one worker") {
  study::StudySpec spec = small_spec();
  spec.max_microbatch = 8;
  CHECK(measure_step_times(spec, {30}, {.max_workers = 1, .cell_seconds = 0.02}).size() == 1);
  if (num_usable_cores() < 2) return skip_test("step times of 2 workers need 2 cores", /*also_in_ci=*/true);
  spec.data = "synthetic:1x8x8,classes=4,samples=64";
  spec.model = "inception:width=4,blocks=1,norm=ghost,ghost=8";
  spec.max_microbatch = 0;
  CHECK(measure_step_times(spec, {8, 16}, {.max_workers = 2, .cell_seconds = 0.02}).size() == 3);  // 8 on 2 workers is one group.
}

TEST_CASE("step times: refusals") {
  const int cores = num_usable_cores();
  CHECK_THROWS_AS(measure_step_times(small_spec(), {8}, {.max_workers = cores + 1}), Error);
  study::StudySpec no_model = small_spec();
  no_model.model = "fcc";
  CHECK_THROWS_AS(measure_step_times(no_model, {8}, {.max_workers = 1}), Error);
  study::StudySpec no_data = small_spec();
  no_data.data = "fashion-mnist:/none";
  CHECK_THROWS_AS(measure_step_times(no_data, {8}, {.max_workers = 1}), Error);
  study::StudySpec quadratic = small_spec();
  quadratic.data = "noisy-quadratic";
  CHECK(measure_step_times(quadratic, {8}).empty());
  CHECK(measure_step_times(small_spec(), {}).empty());
}

}  // namespace
}  // namespace cohort

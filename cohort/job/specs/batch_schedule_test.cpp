#include "cohort/job/specs/batch_schedule.h"

#include <doctest/doctest.h>

#include "cohort/base/error.h"

namespace cohort {
namespace {

TEST_CASE("what --batch-schedule takes, and what it refuses by name") {
  CHECK(parse_batch_schedule("").empty());
  const std::vector<BatchStage> stages = parse_batch_schedule("600:4,900:16,1000:2");
  REQUIRE(stages.size() == 3);
  CHECK(stages[1].first_step == 900);
  CHECK(stages[1].factor == 16);
  CHECK(batch_factor_at(stages, 0) == 1);
  CHECK(batch_factor_at(stages, 599) == 1);
  CHECK(batch_factor_at(stages, 600) == 4);
  CHECK(batch_factor_at(stages, 999) == 16);
  CHECK(batch_factor_at(stages, 5000) == 2);
  CHECK(batches_before({}, 7) == 7);
  CHECK(batches_before(stages, 600) == 600);
  CHECK(batches_before(stages, 601) == 604);
  CHECK(largest_batch_factor(stages) == 16);
  CHECK(largest_batch_factor({}) == 1);
  CHECK(batch_schedule_text(stages, 5000) == "600:4,900:16,1000:2");
  CHECK(batch_schedule_text(stages, 900) == "600:4");
  CHECK(batch_schedule_text(stages, 600).empty());
  for (const char* text : {"4",           "600",         ":4",          "600:",      "600:x",
                           "a:4",         "600:4,",      ",600:4",      "600:4:2",   "0:2",
                           "-1:2",        "600:0",       "600:-1",      "600:1.5",   "600:1",
                           "600:4,900:4", "600:4,600:8", "600:4,500:8", "600:65537", "99999999999999999999:2",
                           "600:4 900:16"}) {
    CAPTURE(text);
    try {
      parse_batch_schedule(text);
      FAIL("taken");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      CHECK(std::string(error.what()).find("--batch-schedule") != std::string::npos);
      CHECK(std::string(error.what()).find("expected STEP:FACTOR") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace cohort

#include "cohort/job/sync_mode.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/error.h"

using namespace cohort;

TEST_CASE("sync: every mode is read and written back") {
  for (const std::string text :
       {"step", "async", "stale:0", "stale:3", "local:1", "diloco:500", "queue", "queue:newest", "queue:replace", "queue:newest:replace"})
    CHECK(to_text(parse_sync(text)) == text);
  CHECK(parse_sync("stale:3") == SyncMode{.kind = SyncKind::kStale, .number = 3});
  CHECK(parse_sync("queue:newest").newest);
  CHECK(!parse_sync("queue:newest").replaces);
  CHECK(has_server(parse_sync("queue:replace")));
  CHECK(!has_late_gradients(parse_sync("queue")));
  CHECK(steps_between_exchanges(parse_sync("diloco:500")) == 500);
  CHECK(steps_between_exchanges(parse_sync("stale:3")) == 1);
  CHECK(is_local(parse_sync("local:1")));
  CHECK(!is_local(parse_sync("step")));
}

TEST_CASE("sync: anything else is refused in one line") {
  for (const std::string text : {"", "sync", "stale", "stale:", "stale:-1", "local:0", "diloco:x", "local:1:2", "async:1", "step:1",
                                 "queue:2", "queue:", "queue:replace:newest", "local:99999999999999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_sync(text), doctest::Contains("is none of: step async stale:K local:H diloco:H queue"), Error);
  }
}

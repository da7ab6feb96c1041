#include "cohort/job/specs/sync_mode.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/error.h"

using namespace cohort;

TEST_CASE("sync: every mode is read and written back") {
  for (const std::string text :
       {"step", "async", "stale:0", "stale:3", "local:1", "diloco:500", "local:4:2", "diloco:8:8", "local:8:quorum=3",
        "diloco:8:quorum=2:grace=0.5", "queue", "queue:newest", "queue:replace", "queue:newest:replace"})
    CHECK(to_text(parse_sync(text)) == text);
  CHECK(parse_sync("stale:3") == SyncMode{.kind = SyncKind::kStale, .number = 3});
  CHECK(parse_sync("diloco:8:4") == SyncMode{.kind = SyncKind::kDiloco, .number = 8, .fragments = 4});
  CHECK(to_text(parse_sync("local:8:1")) == "local:8");
  const SyncMode quorum = parse_sync("diloco:8:1:quorum=2:grace=0.25");
  CHECK(quorum == SyncMode{.kind = SyncKind::kDiloco, .number = 8, .quorum = 2, .grace_seconds = 0.25});
  CHECK(has_server(quorum));
  CHECK(!is_local(quorum));
  CHECK(!has_late_gradients(quorum));
  CHECK(steps_between_exchanges(quorum) == 1);
  CHECK(steps_per_round(quorum) == 8);
  CHECK(steps_per_round(parse_sync("stale:3")) == 1);
  CHECK(steps_between_exchanges(parse_sync("diloco:8:4")) == 8);
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
  for (const std::string text : {"",
                                 "sync",
                                 "stale",
                                 "stale:",
                                 "stale:-1",
                                 "async:servers=2",
                                 "stale:1:servers=2",
                                 "async:",
                                 "local:0",
                                 "diloco:x",
                                 "local:2:0",
                                 "local:2:-1",
                                 "local:2:x",
                                 "local:2:",
                                 "local::2",
                                 "local:8:2:2",
                                 "stale:1:1",
                                 "local:quorum=2",
                                 "local:8:quorum=0",
                                 "local:8:quorum=x",
                                 "local:8:grace=1",
                                 "local:8:quorum=2:grace=-1",
                                 "local:8:quorum=2:grace=nan",
                                 "local:8:quorum=2:quorum=2",
                                 "local:8:quorum=2:grace=1:grace=1",
                                 "local:8:quorum=2:2",
                                 "local:8:quorum=99999999999",
                                 "local:8:lost=2",
                                 "async:quorum=2",
                                 "async:1",
                                 "step:1",
                                 "queue:2",
                                 "hogwild",
                                 "async:overlap",
                                 "stale:2:overlap",
                                 "queue:",
                                 "queue:replace:newest",
                                 "local:99999999999999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_sync(text), doctest::Contains("is none of: step async stale:K local:H local:H:F local:H:quorum=Q"), Error);
  }
  CHECK_THROWS_WITH_AS(parse_sync("diloco:4:2:quorum=2"), doctest::Contains("leave out the 2 fragments"), Error);
  CHECK_THROWS_WITH_AS(parse_sync("diloco:2:3"), doctest::Contains("a round has 2; use 2 or fewer"), Error);
}

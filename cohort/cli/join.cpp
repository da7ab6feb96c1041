#include <cstdio>

#include "cohort/async/served/served_training.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

int run_join(const Arguments& arguments) {
  if (arguments.positional.size() != 1)
    fail(ErrorCode::kBadInput, "join: no address given; run cohort join HOST:PORT with the address that the training printed");
  restore_default_stop_signals();
  const Config& given = arguments.config;
  const JoinRequest request{.address = arguments.positional.front(),
                            .data = arguments.was_given("data") ? given.data : "",
                            .threads = given.threads,
                            .timeout_seconds = given.timeout};
  const int64_t pushes = join_training(request, [&](const Config& theirs) {
    Config config = theirs;
    if (arguments.was_given("plugin")) config.plugin = given.plugin;
    load_plugin(config);
    return open_data(config);
  });
  const bool left = stop_requested();
  log_info(concat(left ? "left the training; " : "the training is over; ", with_commas(pushes), pushes == 1 ? " push" : " pushes",
                  " of it ", pushes == 1 ? "was" : "were", " made here"));
  return left ? static_cast<int>(ErrorCode::kInterrupted) : 0;
}

}  // namespace

Verb join_verb() {
  return {.name = "join",
          .summary =
              "One more worker for a training whose workers do not wait (sync=async, stale:K, queue) and that was started with --listen.",
          .examples = {"cohort join 10.0.0.1:29400", "cohort join node1:29400 --data fashion-mnist:/mnt/fashion-mnist --threads 4"},
          .positional_help = "HOST:PORT of the training; its secret in COHORT_TOKEN or COHORT_TOKEN_FILE",
          .settings = {"data", "plugin", "threads", "timeout"},
          .most_words = 1,
          .run = run_join};
}

}  // namespace cohort

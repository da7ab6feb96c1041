#include "cohort/bench/handover_verb.h"

#include <cstdio>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/bench/handover.h"

namespace cohort {
namespace {

void print_time(const std::string& backend, const HandoverTime& time, bool json) {
  if (json) {
    std::printf("%s\n", Json{{"op", "handover"},
                             {"backend", backend},
                             {"workers", 2},
                             {"bytes", time.bytes},
                             {"seconds", time.seconds},
                             {"message_seconds", time.message_seconds},
                             {"copy_seconds", time.copy_seconds}}
                            .dump()
                            .c_str());
  } else {
    std::printf("%10s %13.2f %17.2f %13.2f\n", human_bytes(time.bytes).c_str(), 1e6 * time.seconds, 1e6 * time.message_seconds,
                1e6 * time.copy_seconds);
  }
}

}  // namespace

int bench_handover_verb(const Arguments& arguments) {
  if (arguments.was_given("workers") && arguments.config.workers != 2)
    fail(ErrorCode::kBadInput, "bench handover: --workers ", arguments.config.workers, ": a tensor goes between two");
  BenchHandoverOptions options{.backend = arguments.config.backend};
  for (int64_t bytes = 4; bytes <= 64 << 20; bytes *= 16) options.sizes.push_back(bytes);
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  std::vector<std::vector<double>> seconds(options.sizes.size()), messages(seconds), copies(seconds);
  std::string backend;
  for (int64_t round = 0; round < rounds; ++round) {
    const HandoverTimes measured = bench_handover(options);
    backend = measured.backend;
    for (size_t i = 0; i < seconds.size(); ++i) {
      seconds[i].push_back(measured.times[i].seconds);
      messages[i].push_back(measured.times[i].message_seconds);
      copies[i].push_back(measured.times[i].copy_seconds);
    }
  }
  if (!arguments.config.json)
    std::printf("one tensor from process to process over %s, microseconds\n%10s %13s %17s %13s\n", backend.c_str(), "size", "hand-over",
                "send and receive", "memcpy");
  for (size_t i = 0; i < seconds.size(); ++i)
    print_time(backend, {options.sizes[i], median(seconds[i]), median(messages[i]), median(copies[i])}, arguments.config.json);
  std::fflush(stdout);
  return 0;
}

}  // namespace cohort

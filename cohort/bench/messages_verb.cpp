#include "cohort/bench/messages_verb.h"

#include <csignal>
#include <cstdio>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/bench/messages.h"

namespace cohort {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;

/// The first asks for an end between two measurements, so that no thread is left with half a message; the second ends the process.
void catch_first_interrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) { is_interrupted = 1; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

int bench_messages_verb(const Arguments& arguments) {
  const BenchMessagesOptions options;
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  const std::vector<MessageWay>& ways = message_ways();
  std::vector<std::vector<double>> round_trips(ways.size()), speeds(ways.size());
  catch_first_interrupt();
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i) {
      const MessageTimes times = bench_messages(ways[i], options);
      if (is_interrupted != 0) fail(ErrorCode::kInterrupted, "bench messages: interrupted before all rounds were done; nothing is printed");
      round_trips[i].push_back(times.round_trip_seconds);
      speeds[i].push_back(times.large_bytes_per_second);
    }
  if (!arguments.config.json)
    std::printf("between two threads of this host\n%-24s %20s %24s\n", "", concat(options.small_bytes, " B and back").c_str(),
                concat("messages of ", human_bytes(static_cast<int64_t>(options.large_bytes))).c_str());
  for (size_t i = 0; i < ways.size(); ++i) {
    const double round_trip = median(round_trips[i]), speed = median(speeds[i]);
    if (arguments.config.json)
      std::printf("%s\n", Json{{"op", "messages"},
                               {"way", ways[i].name},
                               {"small_bytes", options.small_bytes},
                               {"round_trip_seconds", round_trip},
                               {"large_bytes", options.large_bytes},
                               {"bytes_per_second", speed}}
                              .dump()
                              .c_str());
    else std::printf("%-24s %17.1f us %20.0f MB/s\n", ways[i].name.c_str(), 1e6 * round_trip, 1e-6 * speed);
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace cohort

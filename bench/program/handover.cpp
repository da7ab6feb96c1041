// Times handing a tensor from one process to another on this host, as pipeline stages do.
//
// Round trips between two ranks: rank 0 hands a tensor over, rank 1 hands one of the same size back; half the time is one hand-over. Copies
// and both ways of sending rotate block by block, so that what else the machine does falls on all of them. The first byte numbers the
// trips. Each way uses one buffer for all trips, as a copy does: sizes that fit a cache are measured in it.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bench/program/bench_verb.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/tensor_channels.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

struct BenchHandoverOptions {
  std::string backend = "auto";
  std::vector<int64_t> sizes;   ///< Bytes, at least 1.
  int blocks = 5;               ///< Timed blocks of each way, in turn; their median counts.
  double block_seconds = 0.02;  ///< About so long is a block, as many round trips as fit.
};

struct HandoverTime {
  int64_t bytes = 0;
  double seconds = 0;          ///< TensorChannels: from send() to the return of receive(), half a round trip.
  double message_seconds = 0;  ///< Group::send and receive into memory that is there already, likewise.
  double copy_seconds = 0;     ///< memcpy of the same bytes, by one process alone.
};

struct HandoverTimes {
  std::string backend;
  std::vector<HandoverTime> times;
};

using Clock = std::chrono::steady_clock;
constexpr double kTimeoutSeconds = 60;
constexpr size_t kNameBytes = 32;

class HandoverBench {
 public:
  HandoverBench(const BenchHandoverOptions& options, const World& world)
      : options_(options),
        group_(Group::create(world, {.backend = options.backend, .timeout_seconds = kTimeoutSeconds})),
        messages_(group_.split({0, 1}, "messages")),
        channels_(group_) {
    use_compute_threads(1);
    keep_freed_memory();
  }

  const std::string& backend() const { return group_.backend_name(); }

  HandoverTime measure(int64_t bytes) {
    mine_ = at::zeros({bytes}, at::kByte);
    other_ = at::zeros({bytes}, at::kByte);
    const std::array<std::function<void()>, 3> ways = {[this] { hand_over(); }, [this] { message(); }, [this] { copy(); }};
    std::array<int64_t, 3> trips;
    std::array<std::vector<double>, 3> seconds;
    for (size_t way = 0; way < 3; ++way) trips[way] = trips_of_block(ways[way]);
    for (int block = 0; block < options_.blocks; ++block)
      for (size_t way = 0; way < 3; ++way) seconds[way].push_back(timed_block(ways[way], trips[way]) / 2);
    return {bytes, median(seconds[0]), median(seconds[1]), median(seconds[2])};
  }

 private:
  bool leads() const { return group_.rank() == 0; }

  void hand_over() {
    if (leads()) send_next();
    check(channels_.receive(1 - group_.rank(), "a round trip")[0]);
    if (!leads()) send_next();
  }
  void send_next() {
    number();
    channels_.send(1 - group_.rank(), {mine_}, "a round trip");
  }

  void message() {
    number();
    if (leads()) messages_.send(mine_, 1, 0, "a round trip");
    messages_.receive(other_, 1 - group_.rank(), 0, "a round trip");
    check(other_);
    if (!leads()) messages_.send(mine_, 0, 0, "a round trip");
  }

  /// One round trip.
  void copy() {
    if (!leads()) return;
    std::memcpy(other_.data_ptr(), mine_.data_ptr(), mine_.nbytes());
    std::memcpy(mine_.data_ptr(), other_.data_ptr(), mine_.nbytes());
  }

  void number() { mine_.data_ptr<uint8_t>()[mine_.numel() - 1] = static_cast<uint8_t>(trip_); }
  void check(const at::Tensor& got) const {
    if (got.numel() != mine_.numel() || got.const_data_ptr<uint8_t>()[got.numel() - 1] != static_cast<uint8_t>(trip_))
      fail(ErrorCode::kFailed, "bench handover: round trip ", trip_, " of ", mine_.numel(), " bytes brought rank ", group_.rank(),
           " something else");
  }

  /// Seconds of one hand-over.
  double timed_block(const std::function<void()>& way, int64_t trips) {
    messages_.barrier();
    const auto begin = Clock::now();
    for (trip_ = 0; trip_ < trips; ++trip_) way();
    return seconds_since(begin) / static_cast<double>(trips);
  }

  /// The number of round trips that fill block_seconds; the same on both ranks.
  int64_t trips_of_block(const std::function<void()>& way) {
    timed_block(way, 3);  // Touches the memory.
    const double seconds = timed_block(way, 5);
    at::Tensor trips = at::empty({1}, at::kLong);
    trips.mutable_data_ptr<int64_t>()[0] = std::clamp<int64_t>(static_cast<int64_t>(options_.block_seconds / seconds), 1, 100'000);
    messages_.broadcast(trips, 0, "the number of round trips");
    return *trips.const_data_ptr<int64_t>();
  }

  const BenchHandoverOptions& options_;
  Group group_, messages_;
  TensorChannels channels_;
  at::Tensor mine_, other_;
  int64_t trip_ = 0;
};

/// Forks two ranks; the calling process must have one thread. Received data are checked: Error(kFailed) if they are wrong. Error of the
/// rank that failed otherwise.
HandoverTimes bench_handover(const BenchHandoverOptions& options) {
  for (const int64_t bytes : options.sizes)
    if (bytes < 1) fail(ErrorCode::kBadInput, "bench handover: a size of ", bytes, " bytes");
  // Rank 0 is another process, so its numbers are returned in shared memory, after the backend's name.
  const size_t page_bytes = kNameBytes + options.sizes.size() * sizeof(HandoverTime);
  void* const page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  const auto unmap = [page_bytes](void* memory) { ::munmap(memory, page_bytes); };
  const std::unique_ptr<void, decltype(unmap)> shared(page, unmap);
  auto* const name = static_cast<char*>(page);
  auto* const times = reinterpret_cast<HandoverTime*>(name + kNameBytes);
  const int code = run_ranks({.num_ranks = 2, .is_one_of_many = true}, [&](const World& world) {
    HandoverBench bench(options, world);
    for (size_t i = 0; i < options.sizes.size(); ++i) {
      const HandoverTime time = bench.measure(options.sizes[i]);
      if (world.rank == 0) times[i] = time;
    }
    if (world.rank == 0) std::strncpy(name, bench.backend().c_str(), kNameBytes - 1);
    return 0;
  });
  if (code != 0) throw Error(static_cast<ErrorCode>(code), concat("bench handover: the ranks ended with code ", code));
  return {name, {times, times + options.sizes.size()}};
}

void print_time(const std::string& backend, const HandoverTime& time, bool json) {
  if (json) {
    print_line(Json{{"op", "handover"},
                    {"backend", backend},
                    {"workers", 2},
                    {"bytes", time.bytes},
                    {"seconds", time.seconds},
                    {"message_seconds", time.message_seconds},
                    {"copy_seconds", time.copy_seconds}});
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

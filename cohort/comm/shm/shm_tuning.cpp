// Tuning times an all-reduce of floats, the most important call, on rank 0; the minimum of some rounds counts.
//   1. tile_bytes: 1 MiB of private memory with tiles of 64 to 512 KiB; the fastest.
//   2. flat_bytes: for sizes from 64 KiB downwards, copied against tiles; the largest at which copying is faster.
//   3. direct_bytes: the same for shared memory, copied against in place.
// Rank 0 broadcasts each answer before the next question is asked, so that all ranks time the same calls. When its time is up (a busy
// machine) it asks no more.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/shm/shm_transport.h"

namespace cohort {
namespace {

constexpr size_t kLargeBytes = 1 << 20, kLargestFlatBytes = 64 << 10, kSmallestFlatBytes = 1 << 10;
constexpr int kRounds = 5;

class Tuner {
 public:
  Tuner(ShmTransport& transport, double most_seconds)
      : transport_(transport),
        most_seconds_(most_seconds),
        private_(kLargeBytes / sizeof(float)),
        shared_(reinterpret_cast<float*>(transport.arena()->allocate_local(kLargestFlatBytes))) {}
  ~Tuner() { transport_.arena()->release_local(reinterpret_cast<std::byte*>(shared_), kLargestFlatBytes); }

  ShmTuning run() {
    ShmTuning best = transport_.tuning();
    // The first touch of memory is not measured.
    seconds(best, private_.data(), kLargeBytes);
    seconds(best, shared_, kLargestFlatBytes);
    best.measured = fastest_tile(&best) && largest_flat(&best, private_.data(), &ShmTuning::flat_bytes) &&
                    largest_flat(&best, shared_, &ShmTuning::direct_bytes);
    return best;
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Answer : uint8_t { kNo, kYes, kTimeIsUp };

  /// Broadcasts rank 0's answer.
  Answer agree(bool yes) {
    const bool late = seconds_since(began_) > most_seconds_;
    Answer answer = late ? Answer::kTimeIsUp : yes ? Answer::kYes : Answer::kNo;
    Call call{.op = Op::kBroadcast, .input = &answer, .output = &answer, .count = sizeof answer, .name = "tuning"};
    transport_.finish(call);
    return answer;
  }

  double seconds(const ShmTuning& tuning, float* data, size_t bytes) {
    transport_.set_tuning(tuning);
    double least = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      Call barrier{.name = "tuning"};
      transport_.finish(barrier);
      const auto began = Clock::now();
      Call call{.op = Op::kAllReduce, .type = at::kFloat, .input = data, .output = data, .count = bytes / sizeof(float), .name = "tuning"};
      transport_.finish(call);
      least = std::min(least, seconds_since(began));
    }
    return least;
  }

  /// False when time is up: the default stays, since the best of a few may be worse.
  bool fastest_tile(ShmTuning* best) {
    ShmTuning tuning = *best;
    size_t fastest = tuning.tile_bytes;
    double least = 1e9;
    for (size_t tile = 64 << 10; tile <= ShmBoard::kTileBytes; tile *= 2) {
      tuning.tile_bytes = tile;
      const double time = seconds(tuning, private_.data(), kLargeBytes);
      const Answer faster = agree(time < least);
      if (faster == Answer::kTimeIsUp) return false;
      if (faster == Answer::kYes) fastest = tile;
      least = std::min(least, time);
    }
    best->tile_bytes = fastest;
    return true;
  }

  /// `limit` is the member that limits copied inputs. False when time is up.
  bool largest_flat(ShmTuning* best, float* data, size_t ShmTuning::* limit) {
    ShmTuning tuning = *best;
    for (size_t bytes = kLargestFlatBytes; bytes >= kSmallestFlatBytes; bytes /= 2) {
      tuning.*limit = bytes;
      const double copied = seconds(tuning, data, bytes);
      tuning.*limit = ShmSlot::kInlineBytes;
      const Answer faster = agree(copied < seconds(tuning, data, bytes));
      if (faster == Answer::kTimeIsUp) return false;
      if (faster == Answer::kYes || bytes == kSmallestFlatBytes) {
        best->*limit = bytes;
        return true;
      }
    }
    return true;
  }

  ShmTransport& transport_;
  const double most_seconds_;
  std::vector<float> private_;
  float* shared_;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

std::string ShmTuning::text() const {
  const auto size = [](size_t bytes) { return human_bytes(static_cast<int64_t>(bytes)); };
  return concat("copied up to ", size(flat_bytes), " (in shared memory up to ", size(direct_bytes), "), tiles of ", size(tile_bytes),
                measured ? ", measured" : ", not measured");
}

ShmTuning tune(ShmTransport& transport, double most_seconds) {
  const bool own_cores = transport.size() <= ::sysconf(_SC_NPROCESSORS_ONLN);
  // Ranks may be bound to different numbers of cores; rank 0 decides.
  uint8_t worth_it = own_cores && transport.size() > 1;
  Call call{.op = Op::kBroadcast, .input = &worth_it, .output = &worth_it, .count = 1, .name = "tuning"};
  transport.finish(call);
  if (worth_it) transport.set_tuning(Tuner(transport, most_seconds).run());
  return transport.tuning();
}

}  // namespace cohort

#pragma once
// Records the last calls of a group, whatever its transport.

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

/// One recorded call or message.
struct CallRecord {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  enum class State : uint8_t { kRunning, kDone, kFailed };
  Kind kind = Kind::kCollective;
  State state = State::kRunning;
  Signature signature;  ///< For a message `root` is the peer, `count` the bytes, `sequence` its number among messages.
  int tag = 0;
  double start_seconds = 0;  ///< Unix time.
  double seconds = 0;        ///< Duration, so far where it is running.
};

/// "all-reduce #7 of conv1.weight (100 Float, sum), running for 5.0 s".
std::string describe(const CallRecord& record);
Json to_json(const CallRecord& record);
/// Error(kFailed) for an invalid record.
CallRecord call_record_from_json(const Json& json);

/// A ring of the last kCapacity calls. Recording costs two reads of the processor's clock and some stores, without allocation or lock.
/// start() and end() may be called from different threads, one at a time; reading is possible from any thread at any time.
class Recorder {
 public:
  static constexpr size_t kCapacity = 256;

  Recorder();
  /// Records that a call begins; the record_id is for end().
  uint64_t start(const Call& call);
  uint64_t start_message(CallRecord::Kind kind, size_t bytes, int peer, int tag, const char* name);
  void end(uint64_t record_id, bool failed = false);

  /// At most `most` calls, oldest first.
  std::vector<CallRecord> last(size_t most = kCapacity) const;
  /// One line per call.
  std::string text(size_t most = kCapacity) const;

 private:
  /// Atomic words, so that concurrent readers see old or new values without a data race; `record_id` tells which.
  struct alignas(128) Slot {
    std::atomic<uint64_t> record_id{0}, start_ticks{0}, end_ticks{0}, kind{0}, root_and_tag{0}, count{0}, sequence{0};
    std::array<std::atomic<uint64_t>, sizeof Signature::name / 8> name{};
  };
  uint64_t begin(uint64_t kind, int root, int tag, uint64_t count, uint64_t sequence, const char* name);
  bool read(uint64_t record_id, CallRecord* record) const;

  std::unique_ptr<std::array<Slot, kCapacity>> slots_;
  std::atomic<uint64_t> num_started_{0};
  uint64_t num_messages_ = 0;
  uint64_t first_ticks_;  // Taken with first_seconds_: the length of a tick.
  double first_seconds_;
};

}  // namespace cohort

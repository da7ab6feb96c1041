#pragma once
// What a group did last: the recorder that every exchange passes, whatever carries it.

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
  Signature signature;  ///< Of a message: `root` is the peer, `count` its bytes, `sequence` its number among the messages.
  int tag = 0;
  double start_seconds = 0;  ///< Unix time.
  double seconds = 0;        ///< How long it took, or has been running.
};

/// "all-reduce #7 of conv1.weight (100 Float, sum), running for 5.0 s".
std::string describe(const CallRecord& record);
Json to_json(const CallRecord& record);
/// Error(kFailed) when `json` is no record.
CallRecord call_record_from_json(const Json& json);

/// A ring of the last kCapacity calls. Recording costs two reads of the processor's clock and some stores, allocates nothing and takes no
/// lock; start() and end() may be called from different threads, one at a time; reading is possible from any thread at any time.
class Recorder {
 public:
  static constexpr size_t kCapacity = 256;

  Recorder();
  /// Records that a call begins; the record_id is for end().
  uint64_t start(const Call& call);
  uint64_t start_message(CallRecord::Kind kind, size_t bytes, int peer, int tag, const char* name);
  void end(uint64_t record_id, bool failed = false);

  /// The last `most` calls, oldest first.
  std::vector<CallRecord> last(size_t most = kCapacity) const;
  /// A line a call.
  std::string text(size_t most = kCapacity) const;

 private:
  /// Words, so that a reader that meets a writer sees old or new ones and never a data race; `record_id` tells whether it did.
  struct alignas(128) Slot {
    std::atomic<uint64_t> record_id{0}, start_ticks{0}, end_ticks{0}, kind{0}, root_and_tag{0}, count{0}, sequence{0};
    std::array<std::atomic<uint64_t>, sizeof Signature::name / 8> name{};
  };
  uint64_t begin(uint64_t kind, int root, int tag, uint64_t count, uint64_t sequence, const char* name);
  bool read(uint64_t record_id, CallRecord* record) const;

  std::unique_ptr<std::array<Slot, kCapacity>> slots_;
  std::atomic<uint64_t> num_started_{0};
  uint64_t num_messages_ = 0;
  uint64_t first_ticks_;  // With the clock at the same moment: what a tick is worth.
  double first_seconds_;
};

}  // namespace cohort

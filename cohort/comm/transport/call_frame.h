#pragma once
// What ranks tell each other before a collective call over a network: the call's signature and, where it is small, its data.
//
// Steps of a call: 1. every rank makes its frame; 2. the frames of all ranks reach all ranks (the transport's part); 3. every rank compares
// the signatures, so that all see the same mistake and none waits for data that does not come; 4. a call whose data fits (kPayloadBytes a
// rank: a loss, a flag, a barrier) is complete; the others move their data.
//
// Cost: kFrameBytes to and from each rank. Why always: a network that meets another size than it expects ends the process (Gloo) or
// overwrites the wrong memory; 256 bytes travel in the same packet as 64.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/comm/transport/call_bytes.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

struct CallFrame {
  static constexpr size_t kPayloadBytes = 184;

  Signature signature;
  uint32_t num_payload_bytes = 0;
  uint32_t unused = 0;
  std::byte payload[kPayloadBytes] = {};
};
static_assert(sizeof(CallFrame) == 256);

CallFrame make_frame(const Call& call, int rank, int size);

/// Throws Error(kFailed) where the calls differ. `frames`: one a rank.
void check_frames(const CallFrame* frames, int size, const char* group);

/// Finishes the call from the payloads where it is small enough; whether it did. All ranks come to the same answer.
bool finish_from_frames(const CallFrame* frames, const Call& call, int rank, int size);

/// Elements that rank i sends to rank j, counts[i * size + j], of an all-to-all.
struct CountMatrix {
  std::vector<uint64_t> counts;
  int size = 0;
  uint64_t at(int from, int to) const { return counts[static_cast<size_t>(from * size + to)]; }
};
/// One rank's record for it: its send counts, then its receive counts.
std::vector<uint64_t> count_record(const Call& call, int size);
/// Error(kFailed) where a rank expects another count than its peer sends. `records`: one a rank, in rank order.
CountMatrix make_count_matrix(const std::vector<uint64_t>& records, int size, const Call& call, const char* group);

/// memcpy that allows equal places and nothing at all.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace cohort

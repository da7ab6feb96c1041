#pragma once
// Checks and descriptions of calls that all transports share, and the frames that ranks exchange before a call over a network.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Count of an uneven all-to-all.
inline constexpr uint64_t kUnevenCount = ~uint64_t{0};

/// "all-reduce #7 of conv1.weight (100 Float, sum)".
std::string describe(const Signature& signature);
/// Whether two ranks make the same call; names are compared only where both gave one, `sequence` only on request.
bool same_call(const Signature& one, const Signature& other, bool compare_sequence = true);
/// "rank 2", "ranks 0 and 3", "ranks 0, 1 and 3".
std::string describe_ranks(const std::vector<int>& ranks);
/// Copies `name` into the 40 bytes at `to`, zero-padded. A long name loses words at its end or, without spaces (the path of a tensor), at
/// its beginning, replaced by "...". Allocates nothing.
void copy_name(char* to, const char* name);

inline size_t rank_bytes(const Call& call) { return call.count * c10::elementSize(call.type); }
/// Bytes of a rank's input and output; 0 where it has none (a scatter's input on other ranks than the root).
size_t input_bytes(const Call& call, int rank, int size);
size_t output_bytes(const Call& call, int rank, int size);

/// An all-to-all with counts per rank.
bool is_uneven(const Call& call);

/// Error(kBadInput) for an invalid call: a root outside the group, counts for another number of ranks.
void check_call(const Call& call, int size);

// Before a collective call over a network ranks exchange its signature and, where it is small, its data.
//
// Steps: 1. every rank makes its frame; 2. the transport gathers the frames on all ranks; 3. every rank compares the signatures, so that
// all see the same mistake and none waits for data that does not come; 4. a call whose data fits (kPayloadBytes per rank: a loss, a flag, a
// barrier) is complete; others then move their data.
//
// Cost: kFrameBytes to and from each rank. It is always paid because a network that meets an unexpected size ends the process (Gloo) or
// overwrites memory; 256 bytes travel in the same network packet as 64.

struct CallFrame {
  static constexpr size_t kPayloadBytes = 184;

  Signature signature;
  uint32_t num_payload_bytes = 0;
  uint32_t unused = 0;
  std::byte payload[kPayloadBytes] = {};
};
static_assert(sizeof(CallFrame) == 256);

CallFrame make_frame(const Call& call, int rank, int size);

/// Error(kFailed) where the calls differ. `frames`: one per rank.
void check_frames(const CallFrame* frames, int size, const char* group);

/// Completes the call from the payloads where it is small enough. Whether it did, the same on all ranks.
bool finish_from_frames(const CallFrame* frames, const Call& call, int rank, int size);

/// Elements that rank i sends to rank j, counts[i * size + j], of an all-to-all.
struct CountMatrix {
  std::vector<uint64_t> counts;
  int size = 0;
  uint64_t at(int from, int to) const { return counts[static_cast<size_t>(from * size + to)]; }
};
/// One rank's record: its send counts, then its receive counts.
std::vector<uint64_t> count_record(const Call& call, int size);
/// Error(kFailed) where a rank's count differs from its peer's. `records`: in rank order.
CountMatrix make_count_matrix(const std::vector<uint64_t>& records, int size, const Call& call, const char* group);

/// memcpy that allows overlap and empty ranges.
void copy_bytes(void* to, const void* from, size_t bytes);
/// Uninitialized memory, aligned for every element type.
inline std::unique_ptr<std::byte[]> scratch(size_t bytes) { return std::make_unique_for_overwrite<std::byte[]>(bytes); }
size_t sum_of(const std::vector<size_t>& counts);

}  // namespace cohort

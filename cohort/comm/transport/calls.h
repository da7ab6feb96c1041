#pragma once
// What every transport asks of a call before it looks at any data: what it is in words, how many bytes it moves, and, over a network, what
// ranks tell each other of it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Count of an all-to-all whose pieces differ.
inline constexpr uint64_t kUnevenCount = ~uint64_t{0};

/// "all-reduce #7 of conv1.weight (100 Float, sum)".
std::string describe(const Signature& signature);
/// Whether two ranks make the same call; names only where both gave one, and not `sequence` unless asked.
bool same_call(const Signature& one, const Signature& other, bool compare_sequence = true);
/// "rank 2", "ranks 0 and 3", "ranks 0, 1 and 3".
std::string describe_ranks(const std::vector<int>& ranks);
/// Copies `name` into the 40 bytes at `to`, filled up with zeros. One that is too long loses words at its end, or, where it has no spaces
/// (the path of a tensor), at its beginning; "..." stands for them. Allocates nothing.
void copy_name(char* to, const char* name);

inline size_t rank_bytes(const Call& call) { return call.count * c10::elementSize(call.type); }
/// Bytes that a rank with this call hands in and gets out; 0 where it does not take part (the input of others than the root of a scatter).
size_t input_bytes(const Call& call, int rank, int size);
size_t output_bytes(const Call& call, int rank, int size);

/// An all-to-all with counts for each rank.
bool is_uneven(const Call& call);

/// Error(kBadInput) for a call that no rank could carry out: a root outside the group, counts for another number of ranks.
void check_call(const Call& call, int size);

// Before a collective call over a network ranks tell each other the call's signature and, where it is small, its data.
//
// Steps of a call: 1. every rank makes its frame; 2. the frames of all ranks reach all ranks (the transport's part); 3. every rank compares
// the signatures, so that all see the same mistake and none waits for data that does not come; 4. a call whose data fits (kPayloadBytes a
// rank: a loss, a flag, a barrier) is complete; the others move their data.
//
// Cost: kFrameBytes to and from each rank. Why always: a network that meets another size than it expects ends the process (Gloo) or
// overwrites the wrong memory; 256 bytes travel in the same packet as 64.

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

/// memcpy that allows overlap and empty ranges.
void copy_bytes(void* to, const void* from, size_t bytes);
/// Uninitialized memory, aligned for every element type.
inline std::unique_ptr<std::byte[]> scratch(size_t bytes) { return std::make_unique_for_overwrite<std::byte[]>(bytes); }
size_t sum_of(const std::vector<size_t>& counts);

}  // namespace cohort

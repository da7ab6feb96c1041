#pragma once
// Shared state of one group: where it lies in the arena.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

/// How a rank provides its input of a call to the others.
enum class ShmSource : uint32_t {
  kNothing,  ///< No input: a receiver of a broadcast, a barrier, no elements.
  kInline,   ///< In the slot.
  kCopied,   ///< In this rank's ring.
  kShared,   ///< The caller's memory lies in the arena and is read there.
  kPrivate,  ///< The caller's memory is private and goes through tiles.
};

/// A call announced by its rank. For a small call peers read its first one to three cache lines.
struct alignas(128) ShmSlot {
  static constexpr size_t kInlineBytes = 152;
  struct Offsets {
    uint64_t input, output;  ///< In this rank's region; `output` only where both are shared.
  };

  ShmFlag arrived;   ///< Number of the call that the slot holds.
  uint64_t key = 0;  ///< Operation, reduction, type and root, and the low byte of the sequence.
  uint64_t count = 0;
  uint32_t name_hash = 0;  ///< 0: no name.
  ShmSource source = ShmSource::kNothing;
  union {
    std::byte data[kInlineBytes];  ///< kInline.
    Offsets offsets;               ///< kCopied, kShared.
  };
  Signature signature;  ///< For error messages.
};
static_assert(sizeof(ShmSlot) == 256);

/// The message channel between two ranks. The sender allocates its ring with the first message.
struct ShmChannel {
  ShmCounter written;                       ///< Total bytes written by the sender.
  ShmCounter consumed;                      ///< Total bytes read by the receiver.
  alignas(128) std::atomic<uint64_t> ring;  ///< Offset in the sender's region.
};

/// Arena memory at the same offset on all ranks, initially zero: counters, slots, channels, a ring for copies, and tiles.
class ShmBoard {
 public:
  static constexpr uint64_t kNumSlots = 64;
  static constexpr size_t kRingBytes = 512 << 10;
  static constexpr size_t kTileBytes = 512 << 10;  ///< Upper limit.
  static constexpr int kNumTiles = 3;

  struct Counters {
    ShmCounter step;       ///< See shm_algorithms.h.
    ShmCounter completed;  ///< Calls up to this one are finished here, so their slots and copies may be reused. Published in batches.
    ShmCounter lost;       ///< 1 + a rank found ended.
  };

  /// Collective, as ShmArena::reserve() is.
  explicit ShmBoard(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {
    const auto page_after = [](size_t bytes) { return (bytes + 4095) / 4096 * 4096; };
    const size_t num_ranks = static_cast<size_t>(size());
    slots_at_ = sizeof(Counters);
    channels_at_ = slots_at_ + kNumSlots * sizeof(ShmSlot);
    counts_at_ = channels_at_ + num_ranks * sizeof(ShmChannel);
    ring_at_ = page_after(counts_at_ + kNumSlots * 2 * num_ranks * sizeof(uint64_t));
    tiles_at_ = ring_at_ + kRingBytes;
    offset_ = arena_->reserve(tiles_at_ + kNumTiles * kTileBytes);
  }

  const std::shared_ptr<ShmArena>& arena() const { return arena_; }
  int rank() const { return arena_->rank(); }
  int size() const { return arena_->size(); }

  Counters& counters(int rank) const { return *reinterpret_cast<Counters*>(of(rank)); }
  ShmSlot& slot(int rank, uint64_t number) const { return reinterpret_cast<ShmSlot*>(of(rank) + slots_at_)[number % kNumSlots]; }
  ShmChannel& channel(int from, int to) const { return reinterpret_cast<ShmChannel*>(of(from) + channels_at_)[to]; }
  /// Uneven all-to-all: elements to each rank, then from each rank.
  uint64_t* rank_counts(int rank, uint64_t number) const {
    return reinterpret_cast<uint64_t*>(of(rank) + counts_at_) + number % kNumSlots * 2 * static_cast<size_t>(size());
  }
  std::byte* ring(int rank) const { return of(rank) + ring_at_; }
  std::byte* tile(int rank, uint64_t index) const { return of(rank) + tiles_at_ + index % kNumTiles * kTileBytes; }

 private:
  std::byte* of(int rank) const { return arena_->region(rank) + offset_; }

  std::shared_ptr<ShmArena> arena_;
  size_t slots_at_, channels_at_, counts_at_, ring_at_, tiles_at_;
  size_t offset_;
};

}  // namespace cohort

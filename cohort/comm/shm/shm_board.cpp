#include "cohort/comm/shm/shm_board.h"

namespace cohort {
namespace {

size_t page_after(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

ShmBoard::ShmBoard(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {
  const size_t num_ranks = static_cast<size_t>(size());
  slots_at_ = sizeof(Counters);
  channels_at_ = slots_at_ + kNumSlots * sizeof(ShmSlot);
  counts_at_ = channels_at_ + num_ranks * sizeof(ShmChannel);
  ring_at_ = page_after(counts_at_ + kNumSlots * 2 * num_ranks * sizeof(uint64_t));
  tiles_at_ = ring_at_ + kRingBytes;
  offset_ = arena_->reserve(tiles_at_ + kNumTiles * kTileBytes);
}

}  // namespace cohort

#include "cohort/comm/shm/shm_blocks.h"

#include <algorithm>
#include <bit>
#include <new>

namespace cohort {
namespace {

enum State : uint32_t { kUsed, kReleased, kOrphaned };

/// Sizes are rounded up to one of eight steps between two powers of two, so that packets whose sizes differ a little share blocks.
size_t rounded_size(size_t bytes) {
  const size_t step = std::max<size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

struct alignas(64) ShmBlocks::Header {
  std::atomic<uint32_t> state{kUsed};
  size_t block_bytes;  // This header among them.
};

ShmBlocks::Header& ShmBlocks::header_of(std::byte* data) { return *std::launder(reinterpret_cast<Header*>(data - sizeof(Header))); }

ShmBlocks::ShmBlocks(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {}

ShmBlocks::~ShmBlocks() {
  const auto give_back = [this](std::byte* data) { arena_->release_local(data - sizeof(Header), header_of(data).block_bytes); };
  for (const auto& [bytes, blocks] : free_) std::for_each(blocks.begin(), blocks.end(), give_back);
  for (std::byte* data : used_) {
    const size_t bytes = header_of(data).block_bytes;  // Afterwards the block may be gone.
    if (header_of(data).state.exchange(kOrphaned, std::memory_order_acq_rel) == kReleased) give_back(data);
    else arena_->leave_local(bytes);
  }
}

void ShmBlocks::release(ShmArena& arena, std::byte* data) {
  Header& header = header_of(data);
  const size_t bytes = header.block_bytes;  // Afterwards the block is its owner's again.
  if (header.state.exchange(kReleased, std::memory_order_acq_rel) == kOrphaned) arena.free_left(data - sizeof(Header), bytes);
}

/// Finds out which blocks have come back.
void ShmBlocks::collect() {
  std::erase_if(used_, [this](std::byte* data) {
    if (header_of(data).state.load(std::memory_order_acquire) != kReleased) return false;
    free_[header_of(data).block_bytes].push_back(data);
    ++num_free_;
    return true;
  });
}

std::byte* ShmBlocks::take(size_t bytes) {
  const size_t wanted = rounded_size(bytes + sizeof(Header));
  collect();
  // Up to twice the size: else a few small packets would hold the large blocks, and large ones take new memory.
  for (auto found = free_.lower_bound(wanted); found != free_.end() && found->first <= 2 * wanted; ++found) {
    if (found->second.empty()) continue;
    std::byte* const data = found->second.back();
    found->second.pop_back();
    --num_free_;
    used_.push_back(data);
    header_of(data).state.store(kUsed, std::memory_order_relaxed);
    return data;
  }
  std::byte* const block = arena_->allocate_local(wanted);
  Header* const header = new (block) Header;
  header->block_bytes = wanted;
  used_.push_back(block + sizeof(Header));
  return used_.back();
}

}  // namespace cohort

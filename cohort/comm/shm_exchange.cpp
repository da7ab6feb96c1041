#include "cohort/comm/shm_exchange.h"

#include <algorithm>
#include <cstring>

#include "cohort/comm/sum_in_place.h"

namespace cohort {

ShmExchange::ShmExchange(std::shared_ptr<ShmArena> arena, const std::vector<int>& pids, double timeout_seconds)
    : arena_(std::move(arena)), waiter_(pids, timeout_seconds) {}

bool ShmExchange::is_shared(const at::Tensor& tensor) const {
  size_t offset;
  return tensor.is_contiguous() && arena_->offset_of(tensor.data_ptr(), tensor.nbytes(), &offset);
}

uint64_t ShmExchange::start_sum(const at::Tensor& tensor) {
  Sum sum{0, static_cast<size_t>(tensor.numel()), static_cast<size_t>(tensor.element_size()), tensor.scalar_type()};
  arena_->offset_of(tensor.data_ptr(), tensor.nbytes(), &sum.offset);
  under_way_.push_back(sum);
  publish(arena_->counters(arena_->rank()).arrived, ++num_started_);
  // Sums that everybody has started meanwhile are added now, while their data is still in the cache.
  add_slices_up_to(num_started_, /*block=*/false);
  return num_started_;
}

void ShmExchange::finish_sum(uint64_t number) {
  add_slices_up_to(number, /*block=*/true);
  for (int peer = 0; peer < arena_->size(); ++peer)
    if (peer != arena_->rank()) waiter_.wait(arena_->counters(peer).finished, number, peer);
}

void ShmExchange::add_slices_up_to(uint64_t number, bool block) {
  while (num_added_ < number) {
    for (int peer = 0; peer < arena_->size(); ++peer) {
      if (peer == arena_->rank()) continue;
      ShmCounter& arrived = arena_->counters(peer).arrived;
      if (!block && !ShmWaiter::has_reached(arrived, num_added_ + 1)) return;
      waiter_.wait(arrived, num_added_ + 1, peer);
    }
    add_my_slice(under_way_.front());
    under_way_.pop_front();
    publish(arena_->counters(arena_->rank()).finished, ++num_added_);
  }
}

void ShmExchange::add_my_slice(const Sum& sum) {
  // Slices begin at cache lines, so that no two ranks write to one.
  const size_t per_line = 64 / sum.element_bytes, lines = (sum.count + per_line - 1) / per_line;
  const size_t rank = static_cast<size_t>(arena_->rank()), size = static_cast<size_t>(arena_->size());
  const size_t begin = std::min(sum.count, lines * rank / size * per_line), end = std::min(sum.count, lines * (rank + 1) / size * per_line);
  std::vector<std::byte*> arrays;
  for (int peer = 0; peer < arena_->size(); ++peer) arrays.push_back(arena_->region(peer) + sum.offset + begin * sum.element_bytes);
  sum_in_place(arrays, end - begin, sum.type);
}

/// One staged operation on `bytes` bytes in rounds of a tile: fill(my tile) where given, then read(...) the tiles of all.
void ShmExchange::round(size_t bytes, const std::function<void(std::byte*)>& fill,
                        const std::function<void(size_t begin, size_t length, const std::byte* const* tiles)>& read) {
  std::vector<const std::byte*> tiles(static_cast<size_t>(arena_->size()));
  size_t begin = 0;
  do {
    const size_t length = std::min(ShmArena::kTileBytes, bytes - begin), tile = num_rounds_ % 2 * ShmArena::kTileBytes;
    if (fill) fill(arena_->region(arena_->rank()) + tile);
    publish(arena_->counters(arena_->rank()).round, ++num_rounds_);
    for (int peer = 0; peer < arena_->size(); ++peer) {
      if (peer != arena_->rank()) waiter_.wait(arena_->counters(peer).round, num_rounds_, peer);
      tiles[static_cast<size_t>(peer)] = arena_->region(peer) + tile;
    }
    if (read) read(begin, length, tiles.data());
    begin += length;
  } while (begin < bytes);
}

namespace {

/// Fills tile after tile with `bytes` bytes from `data` on.
std::function<void(std::byte*)> fill_from(const void* data, size_t bytes) {
  return [from = static_cast<const std::byte*>(data), left = bytes](std::byte* tile) mutable {
    const size_t length = std::min(ShmArena::kTileBytes, left);
    std::memcpy(tile, from, length);
    from += length;
    left -= length;
  };
}

}  // namespace

void ShmExchange::staged_sum(at::Tensor tensor) {
  std::byte* const data = static_cast<std::byte*>(tensor.data_ptr());
  const size_t element_bytes = static_cast<size_t>(tensor.element_size());
  round(tensor.nbytes(), fill_from(data, tensor.nbytes()), [&](size_t begin, size_t length, const std::byte* const* tiles) {
    sum_into(data + begin, std::vector<const std::byte*>(tiles, tiles + arena_->size()), length / element_bytes, tensor.scalar_type());
  });
}

void ShmExchange::broadcast(at::Tensor tensor, int root) {
  std::byte* const data = static_cast<std::byte*>(tensor.data_ptr());
  if (arena_->rank() == root) return round(tensor.nbytes(), fill_from(data, tensor.nbytes()), nullptr);
  round(tensor.nbytes(), nullptr,
        [&](size_t begin, size_t length, const std::byte* const* tiles) { std::memcpy(data + begin, tiles[root], length); });
}

void ShmExchange::all_gather(at::Tensor output, const at::Tensor& input) {
  std::byte* const all = static_cast<std::byte*>(output.data_ptr());
  const size_t bytes = input.nbytes();
  round(bytes, fill_from(input.data_ptr(), bytes), [&](size_t begin, size_t length, const std::byte* const* tiles) {
    for (int peer = 0; peer < arena_->size(); ++peer) std::memcpy(all + static_cast<size_t>(peer) * bytes + begin, tiles[peer], length);
  });
}

void ShmExchange::barrier() { round(0, nullptr, nullptr); }

}  // namespace cohort

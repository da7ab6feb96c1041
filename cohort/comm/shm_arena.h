#pragma once
// Memory that all ranks of one host map: one file without a name, a region for each rank.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace cohort {

/// One rank's counters. Written by that rank alone (but `sleepers`), each on cache lines of its own, so that a wait reads a line that
/// changes once.
struct alignas(128) ShmCounter {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> sleepers{0};  ///< Ranks that sleep on `value` (futex); its writer wakes them.
};
struct ShmRank {
  ShmCounter arrived;   ///< Number of sums whose addends are in place.
  ShmCounter finished;  ///< Number of sums whose slice this rank has written everywhere.
  ShmCounter round;     ///< Rounds of staged operations.
};

/// Layout of the file: header page(s) with the counters; then for each rank a region of kRegionBytes, of which the first kStagingBytes are
/// for staged operations and the rest is handed out by allocate() (lower half) and allocate_local() (upper half). The file is sparse:
/// memory is taken when it is allocated (posix_fallocate, so that want of memory is an error and not a SIGBUS) and given back when the last
/// tensor in it ends.
class ShmArena : public std::enable_shared_from_this<ShmArena> {
 public:
  static constexpr size_t kRegionBytes = size_t{1} << 36;
  static constexpr size_t kTileBytes = 256 << 10;
  static constexpr size_t kStagingBytes = 2 * kTileBytes;  ///< Two tiles: one is filled while the other is read.

  /// Collective over ranks of one host that meet at `store`. Rank 0 makes the file; the others open it through /proc/<pid>/fd, which the
  /// kernel allows to the same user only, and prove through a number in the mapping that it is the same memory. Null on every rank when any
  /// of them cannot (other name spaces).
  static std::shared_ptr<ShmArena> create(c10d::Store& store, int rank, int size);
  ~ShmArena();
  ShmArena(const ShmArena&) = delete;

  /// Collective, in the same order on all ranks: `num_elements` zeros at the same offset of each rank's region. Error(kEnvironment) when
  /// memory is short.
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options);
  /// Memory of this rank alone, which its peers can read: `bytes`, page-aligned; not collective, any thread. release_local() gives it back.
  std::byte* allocate_local(size_t bytes);
  void release_local(std::byte* data, size_t bytes);
  /// Whether [data, data + bytes) lies in this rank's region; then its offset there.
  bool offset_of(const void* data, size_t bytes, size_t* offset) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  ShmRank& counters(int rank) const;
  std::byte* region(int rank) const { return base_ + header_bytes_ + static_cast<size_t>(rank) * kRegionBytes; }

 private:
  ShmArena(int fd, int rank, int size);
  std::byte* commit(size_t offset, size_t bytes, size_t limit);
  void give_back(const std::byte* data, size_t bytes);

  int fd_, rank_, size_;
  size_t header_bytes_, total_bytes_;
  std::byte* base_ = nullptr;
  size_t next_ = kStagingBytes;                       // allocate() climbs from below,
  std::atomic<size_t> next_local_{kRegionBytes / 2};  // allocate_local() from the middle.
};

}  // namespace cohort

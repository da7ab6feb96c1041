#pragma once
// Memory mapped by all ranks of a host: a file without a name, a region per rank, and blocks that are lent to other ranks.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace cohort {

/// A counter written by one rank and awaited by others.
struct ShmFlag {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> sleepers{0};  ///< Ranks asleep on `value` (futex); the writer wakes them.
  std::atomic<uint32_t> core{0};      ///< 1 + the core of the last write; 0: none.
};
/// On cache lines of its own.
struct alignas(128) ShmCounter : ShmFlag {};

/// Layout of the file: a page with a header, then for each rank a region of kRegionBytes, whose lower half allocate() and reserve() use and
/// whose upper half allocate_local() uses. The file is sparse: memory is committed at allocation (posix_fallocate, so that a shortage is an
/// error and not a SIGBUS) and released when the last tensor in it ends.
class ShmArena : public std::enable_shared_from_this<ShmArena> {
 public:
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr size_t kRegionBytes = size_t{1} << 36;

  /// How ranks other than 0 may open the file.
  enum class Opening { kEither, kProcess, kSocket };
  /// Collective over ranks of one host that meet at `store`. Rank 0 creates the file; the others open it through /proc/<pid>/fd, which the
  /// kernel allows to the same user only, or receive it over a UNIX socket that checks the user. A nonce in the mapping proves that it is
  /// the same memory. Ranks that are threads of rank 0's process share its mapping. Null on every rank when any of them cannot (other name
  /// spaces).
  static std::shared_ptr<ShmArena> create(c10d::Store& store, int rank, int size, Opening opening = Opening::kEither);
  ShmArena(const ShmArena&) = delete;
  ~ShmArena();

  /// Collective, in the same order on all ranks: `num_elements` zeros at the same offset of each rank's region. Error(kEnvironment) when
  /// memory is short.
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options);
  /// Collective, in the same order on all ranks: `bytes` zeros, page-aligned, at the returned offset of each rank's region. They live as
  /// long as the arena, so that a late rank still finds the counters of one that has left.
  size_t reserve(size_t bytes);
  /// `bytes` of this rank's memory, page-aligned, readable by its peers. Not collective, any thread. Freed by release_local().
  std::byte* allocate_local(size_t bytes);
  void release_local(std::byte* data, size_t bytes);
  /// Commits the same range again after release_local(), zeroed; addresses are not reused otherwise.
  void take_local_again(std::byte* data, size_t bytes);
  /// release_local() in two halves, for memory that another rank still reads when its owner ends: the owner stops counting it, the reader
  /// frees it.
  void leave_local(size_t bytes);
  void free_left(const std::byte* data, size_t bytes);
  /// Whether [data, data + bytes) lies in this rank's region, and its offset there.
  bool offset_of(const void* data, size_t bytes, size_t* offset) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::byte* region(int rank) const { return map_->base() + kHeaderBytes + static_cast<size_t>(rank) * kRegionBytes; }

 private:
  /// The mapped file; unmapped and closed with its last user in this process.
  class Map {
   public:
    Map(int fd, int size);
    ~Map();
    Map(const Map&) = delete;
    int fd() const { return fd_; }
    std::byte* base() const { return base_; }  ///< Null when it could not be mapped.
    bool has_nonce(uint64_t nonce) const;

   private:
    int fd_;
    size_t bytes_;
    std::byte* base_ = nullptr;
  };
  struct Opener;

  ShmArena(std::shared_ptr<Map> map, int rank, int size);
  std::byte* commit(size_t offset, size_t bytes, size_t limit);
  void give_back(const std::byte* data, size_t bytes);
  void free_pages(const std::byte* data, size_t bytes);

  std::shared_ptr<Map> map_;
  int rank_, size_;
  size_t reserved_bytes_ = 0;
  size_t next_ = 0;                                   // Used by allocate(),
  std::atomic<size_t> next_local_{kRegionBytes / 2};  // and by allocate_local().
};

/// Blocks of this rank's region. A user of any rank and thread returns a block with release(), one atomic exchange, for reuse. Touched
/// memory is kept, since a page fault costs more than copying a page.
/// Blocks in use when the pool ends are freed by their users. One thread at a time except for release().
class ShmBlocks {
 public:
  explicit ShmBlocks(std::shared_ptr<ShmArena> arena);
  ~ShmBlocks();
  ShmBlocks(const ShmBlocks&) = delete;

  /// `bytes` aligned to 64. Error(kEnvironment) when memory is short.
  std::byte* take(size_t bytes);
  /// Returns a block of any rank, by its address in this process.
  static void release(ShmArena& arena, std::byte* data);

  size_t num_blocks() const { return used_.size() + num_free_; }

 private:
  /// Precedes the data.
  struct Header;

  static Header& header_of(std::byte* data);
  void collect();

  std::shared_ptr<ShmArena> arena_;
  std::vector<std::byte*> used_;
  std::map<size_t, std::vector<std::byte*>> free_;  // By size; the last used first, since it is in the caches.
  size_t num_free_ = 0;
};

}  // namespace cohort

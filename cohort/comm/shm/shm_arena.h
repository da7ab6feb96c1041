#pragma once
// Memory that all ranks of one host map: one file without a name, a region for each rank, and blocks of it that go to another rank and come
// back.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace cohort {

/// A number that one rank writes and others wait for.
struct ShmFlag {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> sleepers{0};  ///< Ranks that sleep on `value` (futex); its writer wakes them.
  std::atomic<uint32_t> core{0};      ///< 1 + the core that its writer ran on when it wrote last; 0: it has not.
};
/// One on cache lines of its own, so that a wait reads a line that changes once.
struct alignas(128) ShmCounter : ShmFlag {};

/// Layout of the file: a page with a header; then for each rank a region of kRegionBytes, handed out by allocate() and reserve() (lower
/// half) and allocate_local() (upper half). The file is sparse: memory is taken when it is allocated (posix_fallocate, so that want of
/// memory is an error and not a SIGBUS) and given back when the last tensor in it ends.
class ShmArena : public std::enable_shared_from_this<ShmArena> {
 public:
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr size_t kRegionBytes = size_t{1} << 36;

  /// How ranks other than 0 may come by the file.
  enum class Opening { kEither, kProcess, kSocket };
  /// Collective over ranks of one host that meet at `store`. Rank 0 makes the file; the others open it through /proc/<pid>/fd, which the
  /// kernel allows to the same user only, or where that fails receive it over a UNIX socket that checks the user. They prove through a
  /// number in the mapping that it is the same memory. Ranks that are threads of rank 0's process share its mapping. Null on every rank
  /// when any of them cannot (other name spaces).
  static std::shared_ptr<ShmArena> create(c10d::Store& store, int rank, int size, Opening opening = Opening::kEither);
  ShmArena(const ShmArena&) = delete;
  ~ShmArena();

  /// Collective, in the same order on all ranks: `num_elements` zeros at the same offset of each rank's region. Error(kEnvironment) when
  /// memory is short.
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options);
  /// Collective, in the same order on all ranks: `bytes` zeros, page-aligned, at the same offset of each rank's region; that offset. They
  /// stay as long as the arena, so that a rank that is late still finds the last counter of one that has left.
  size_t reserve(size_t bytes);
  /// Memory of this rank alone, which its peers can read: `bytes`, page-aligned; not collective, any thread. release_local() gives it back.
  std::byte* allocate_local(size_t bytes);
  void release_local(std::byte* data, size_t bytes);
  /// What release_local() gave back, at the same place, with zeros; addresses are not handed out twice otherwise.
  void take_local_again(std::byte* data, size_t bytes);
  /// The same in two halves, where a rank ends whose memory another one still reads: it stops counting, that one frees.
  void leave_local(size_t bytes);
  void free_left(const std::byte* data, size_t bytes);
  /// Whether [data, data + bytes) lies in this rank's region; then its offset there.
  bool offset_of(const void* data, size_t bytes, size_t* offset) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::byte* region(int rank) const { return map_->base() + kHeaderBytes + static_cast<size_t>(rank) * kRegionBytes; }

 private:
  /// The mapped file; unmapped and closed when the last user in this process is gone.
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
  size_t next_ = 0;                                   // allocate() climbs from below,
  std::atomic<size_t> next_local_{kRegionBytes / 2};  // allocate_local() from the middle.
};

/// Blocks of this rank's region. take() gives one; its user, of any rank and thread, calls release(), which is one atomic exchange, and
/// the block is used again. Memory once touched stays: a page fault costs more than the copy of a page.
///
/// Blocks that are still used when the pool ends are given back by who releases them. One thread at a time but for release().
class ShmBlocks {
 public:
  explicit ShmBlocks(std::shared_ptr<ShmArena> arena);
  ~ShmBlocks();
  ShmBlocks(const ShmBlocks&) = delete;

  /// `bytes` aligned to 64. Error(kEnvironment) when memory is short.
  std::byte* take(size_t bytes);
  /// Ends the use of what take() of any rank gave, as this process sees it. The content may be overwritten from now on.
  static void release(ShmArena& arena, std::byte* data);

  size_t num_blocks() const { return used_.size() + num_free_; }

 private:
  /// Before the data.
  struct Header;

  static Header& header_of(std::byte* data);
  void collect();

  std::shared_ptr<ShmArena> arena_;
  std::vector<std::byte*> used_;
  std::map<size_t, std::vector<std::byte*>> free_;  // By size; the last used first, it is in the caches.
  size_t num_free_ = 0;
};

}  // namespace cohort

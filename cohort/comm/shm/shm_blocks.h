#pragma once
// Shared memory of one rank that goes to another rank and comes back.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cohort/comm/shm/shm_arena.h"

namespace cohort {

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

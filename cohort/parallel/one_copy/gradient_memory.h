#pragma once
// Lets autograd write gradients straight into memory that the other ranks of this host can read.
//
// LibTorch makes a gradient with its CPU allocator and moves it, uncopied, to `.grad`. While a GradientMemory lives, allocations of its
// thread whose size is exactly that of one of its parameters come from the rank's part of the shared memory instead; a block is used again
// for the next allocation of its size. An activation that happens to have such a size lands there too, which does no harm.
//
// Cost: a thread-local look-up for an allocation of this process, a mutex and a hash look-up for one that is taken.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/comm/shm/shm_arena.h"

namespace cohort {

/// Made and destroyed by the thread that runs backward(). Tensors in its memory may outlive it.
class GradientMemory {
 public:
  /// Sizes below this are not worth it: such gradients are copied.
  static constexpr size_t kSmallestBytes = 4096;

  GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<size_t>& sizes_bytes);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;

  /// Of all blocks ever made, in use or waiting to be.
  int64_t bytes() const;

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace cohort

#pragma once
// Lets autograd write gradients straight into memory that the other ranks of this host can read.
//
// LibTorch makes a gradient with its CPU allocator and moves it, uncopied, to `.grad`. While a GradientMemory lives, allocations of its
// thread inside of backward whose size is exactly that of one of its parameters come from the rank's part of the shared memory instead, one
// block for each such parameter, used again and again. An activation's gradient of such a size may have the block for a while, and then
// the parameter's is made elsewhere and copied: rarely, and no memory grows by it.
//
// Cost: a thread-local look-up for an allocation of this process, a mutex and a hash look-up for one that is taken.

#include <ATen/core/Tensor.h>

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

  /// `sizes_bytes`: one a parameter.
  GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<size_t>& sizes_bytes);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;

  /// A block for a tensor like that parameter, for what backward made elsewhere; undefined where all of its size are in use.
  at::Tensor empty_like(const at::Tensor& parameter);
  /// Of all blocks ever made, in use or waiting to be.
  int64_t bytes() const;

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace cohort

#pragma once
// Lets autograd write gradients straight into memory that the other ranks of this host can read.
//
// LibTorch makes a gradient with its CPU allocator and moves it, uncopied, to `.grad`. While a GradientMemory lives, what the node in front
// of one of its parameters allocates in a backward() of its thread comes from the rank's part of the shared memory instead, where it has
// that parameter's size. The node and not the size tells: a second model of the same shapes, torch::autograd::grad() and other tensors of
// such a size stay where they would be. The node may make something else of the size (its input's gradient): that has a block for a while.
//
// Blocks are used again and again. Who keeps gradients keeps their blocks: there are at most twice as many as parameters, and two, and
// beyond that gradients are made elsewhere and copied (empty_like()), which always finds room. What is idle beyond the parameters' number,
// and two, gives its memory back.
//
// Cost: a thread-local look-up for an allocation of this process; for one that has a parameter's size a look at the node's edges; a mutex
// and a hash look-up for one that is taken.

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

  /// `parameters` must live as long as this does.
  GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<at::Tensor>& parameters);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;

  /// A block for a tensor like that parameter, of at least kSmallestBytes, for what backward made elsewhere. Error(kEnvironment) where
  /// memory is short.
  at::Tensor empty_like(const at::Tensor& parameter);
  /// Of all blocks that have memory, in use or waiting to be.
  int64_t bytes() const;

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace cohort

#pragma once
// Memory that is lent to tensors for a while: whole units of sharded weights and gradients exist only while they are needed.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cohort {

/// A 1-d tensor of `num_elements` without memory: every use of its elements throws c10::Error until UnitMemory::attach(),
/// and so does making views of it.
at::Tensor without_memory(int64_t num_elements, at::TensorOptions options);

/// Whether a tensor (or the tensor it is a view of) has memory now.
bool has_memory(const at::Tensor& tensor);

/// Lends blocks, of the device of the tensor that asks, and keeps returned ones for the next attach(), so that pages are not made anew for
/// every layer of every step. One thread at a time. On a GPU a block may be lent again while kernels that were given it before still run:
/// all uses are on one stream, or are ordered with it as c10d's are.
class UnitMemory {
 public:
  /// Returned blocks are given back to the system when lent and kept blocks together would exceed `kept_bytes`.
  explicit UnitMemory(int64_t kept_bytes) : kept_bytes_(kept_bytes) {}

  /// Gives the tensor's storage memory, contents undefined. All views of it have it from now on.
  void attach(const at::Tensor& tensor);
  /// Takes it back.
  void detach(const at::Tensor& tensor);

  int64_t lent_bytes() const { return lent_bytes_; }
  /// The most that was held at one time, lent and kept.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Block {
    size_t bytes = 0;
    c10::DataPtr data;
  };
  Block take(size_t bytes, c10::Device device);

  int64_t kept_bytes_;
  int64_t lent_bytes_ = 0, idle_bytes_ = 0, peak_bytes_ = 0;
  std::vector<Block> idle_;
  std::vector<std::pair<const void*, size_t>> lent_;  ///< Storage -> bytes of its block.
};

}  // namespace cohort

#pragma once
// Tensors on their way between a server and its workers: as one array of bytes, or in memory that both have.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {

// Several tensors as one array of bytes: one entry of a checkpoint for what belongs together.

int64_t packed_bytes(const std::vector<at::Tensor>& tensors);
/// A copy of those that are defined, one after the other.
at::Tensor packed(const std::vector<at::Tensor>& tensors);
/// The same as bytes of a message.
std::string packed_text(const std::vector<at::Tensor>& tensors);
/// The other way, into the memory of contiguous tensors whose bytes are as many.
void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);
/// Error(kBadInput) where the bytes are more or fewer.
void unpack(const std::string& bytes, const std::vector<at::Tensor>& tensors);

// Memory that the server of a model and one worker of its host both have: versions go down and what came of them up in it, and messages say
// alone when.

/// One thread on each end, which take turns: the worker writes from when it was given work until it says that it is done.
class WorkerSlot {
 public:
  WorkerSlot() = default;  ///< None.
  /// The server's, in memory that is gone with the last process that has it. `down` and `up` are like the tensors that go each way. None
  /// where the system gives no such memory.
  static WorkerSlot make(const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);
  /// The worker's, of the server's address(). None where that is of another host, of another user, or not of these tensors.
  static WorkerSlot find(const std::string& address, const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);

  explicit operator bool() const { return memory_ != nullptr; }
  /// For find(); "" where there is none.
  const std::string& address() const { return address_; }
  /// In the memory, which they keep.
  const std::vector<at::Tensor>& down() const { return down_; }
  const std::vector<at::Tensor>& up() const { return up_; }

 private:
  struct Memory;
  WorkerSlot(std::shared_ptr<Memory> memory, std::string address, const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);
  std::shared_ptr<Memory> memory_;
  std::string address_;
  std::vector<at::Tensor> down_, up_;
};

/// What a worker handed over: where it lies in the slot, those; else `data`, into `empty`. Without those that it says are `missing`, which
/// may be of the first `num_optional`. Error(kBadInput) beginning with `where` for anything else.
std::vector<at::Tensor> handed_over(const WorkerSlot* slot, const std::vector<at::Tensor>& empty, const std::string& data,
                                    const std::vector<size_t>& missing, size_t num_optional, const std::string& where);

/// Copies those that are defined, into contiguous memory of as many elements.
void copy_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

}  // namespace cohort

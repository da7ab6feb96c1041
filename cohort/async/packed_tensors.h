#pragma once
// Tensors between a parameter server and its workers: as one byte array, or in memory shared by both.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {

int64_t packed_bytes(const std::vector<at::Tensor>& tensors);
/// The bytes of the defined tensors, concatenated.
at::Tensor packed(const std::vector<at::Tensor>& tensors);
std::string packed_text(const std::vector<at::Tensor>& tensors);
/// Into contiguous tensors of the same total size.
void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);
/// Error(kBadInput) if the sizes differ.
void unpack(const std::string& bytes, const std::vector<at::Tensor>& tensors);

/// Memory shared by the server and one worker of its host: weights flow down and pushes up through it, messages carry only the timing. The
/// two take turns: the worker may write between receiving work and reporting it done. One thread on each end.
class WorkerSlot {
 public:
  WorkerSlot() = default;  ///< No shared memory.
  /// The server's end; `down` and `up` have the shapes of the tensors that go each way. Empty if the system provides no such memory. The
  /// memory is freed with the last process that maps it.
  static WorkerSlot make(const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);
  /// The worker's end, by the server's address(). Empty if that is on another host, of another user, or for other tensors.
  static WorkerSlot find(const std::string& address, const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);

  explicit operator bool() const { return memory_ != nullptr; }
  /// For find(); "" without shared memory.
  const std::string& address() const { return address_; }
  /// Views that keep the memory alive.
  const std::vector<at::Tensor>& down() const { return down_; }
  const std::vector<at::Tensor>& up() const { return up_; }

 private:
  struct Memory;
  WorkerSlot(std::shared_ptr<Memory> memory, std::string address, const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up);
  std::shared_ptr<Memory> memory_;
  std::string address_;
  std::vector<at::Tensor> down_, up_;
};

/// The tensors of a push: the slot's, or `data` unpacked into `empty` if `slot` is null. Tensors listed in `missing`, which must be among
/// the first `num_optional`, are undefined. Error(kBadInput) beginning with `where` otherwise.
std::vector<at::Tensor> receive_push(const WorkerSlot* slot, const std::vector<at::Tensor>& empty, const std::string& data,
                                     const std::vector<size_t>& missing, size_t num_optional, const std::string& where);

/// Copies the defined tensors into contiguous ones of the same size.
void copy_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

}  // namespace cohort

#pragma once
// Several tensors in one stretch of memory: how a packet lies in shared memory and on the wire.
//
// Words of 8 bytes: the number of tensors; for each its type (kUndefined: none), dimensions, sizes and where its data begins, counted from
// the packet's begin. Then the data, row by row, each tensor's at a multiple of kPacketAlignment.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cohort {

constexpr size_t kPacketAlignment = 64;

/// What pack() will write. Error(kBadInput) that names `what` for a tensor that is not dense CPU memory.
size_t packed_bytes(const std::vector<at::Tensor>& tensors, const std::string& what);
/// Copies each tensor once, whatever its strides. `packet` is aligned to 8 bytes and holds packed_bytes().
void pack(const std::vector<at::Tensor>& tensors, std::byte* packet);
/// Tensors over the packet's own memory, aligned to kPacketAlignment; `owner` lives until the last of them has ended. Error(kFailed) for
/// bytes that are no packet.
std::vector<at::Tensor> unpack(std::byte* packet, size_t bytes, const std::shared_ptr<void>& owner);

}  // namespace cohort

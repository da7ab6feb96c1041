#pragma once
// Several tensors as one array of bytes: one entry of a checkpoint for what belongs together.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

int64_t packed_bytes(const std::vector<at::Tensor>& tensors);
/// A copy of those that are defined, one after the other.
at::Tensor packed(const std::vector<at::Tensor>& tensors);
/// The same as bytes of a message.
std::string packed_text(const std::vector<at::Tensor>& tensors);
/// The other way, into the memory of contiguous tensors whose bytes are as many.
void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);
/// Error(kBadInput) where the bytes are more or fewer.
void unpack(const std::string& bytes, const std::vector<at::Tensor>& tensors);

}  // namespace cohort

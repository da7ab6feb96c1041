#pragma once
// Uninitialised bytes on the heap.

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "cohort/base/fail.h"

namespace cohort {

/// Owns `size` bytes of unspecified content. Move-only.
class ByteBuffer {
 public:
  ByteBuffer() = default;
  /// Error(kBadInput) that names the file `what` when memory is exhausted.
  ByteBuffer(int64_t size, const std::string& what) : size_(size) {
    data_.reset(new (std::nothrow) uint8_t[static_cast<size_t>(size)]);
    if (!data_) fail(ErrorCode::kBadInput, what, ": no memory for its ", size, " bytes");
  }

  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  std::span<const uint8_t> bytes() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  int64_t size_ = 0;
};

/// Memory limit of a data set, against invalid or hostile headers.
constexpr int64_t kMaxDataBytes = INT64_C(1) << 34;
/// Sampler keeps an epoch's order as 32-bit numbers.
constexpr int64_t kMaxSamples = INT64_C(0x7fffffff);

}  // namespace cohort

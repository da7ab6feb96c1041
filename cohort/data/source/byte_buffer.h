#pragma once
// A block of bytes on the heap that is not zeroed first: its pages cost nothing until a file is read into them.

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
  /// `what` names the file in the Error(kBadInput) that is thrown when there is no such memory.
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

/// No data set may need more memory than this: a header that promises more is wrong, or hostile.
constexpr int64_t kMaxDataBytes = INT64_C(1) << 34;
/// Sampler keeps an epoch's order as 32-bit numbers.
constexpr int64_t kMaxSamples = INT64_C(0x7fffffff);

}  // namespace cohort

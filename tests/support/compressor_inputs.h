#pragma once
// Gradients and buffers for the tests of compressors.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "cohort/base/random.h"
#include "cohort/parallel/compress/compressor.h"

namespace cohort {

/// About normal, with magnitudes over three decades, as gradients are: a function of seed, rank, step and place.
inline at::Tensor test_gradient(uint64_t seed, int rank, int64_t step, int64_t count) {
  at::Tensor out = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += unit_interval(random_bits(seed, rank, step, i, k)) - 0.5;
    out.data_ptr<float>()[i] = static_cast<float>(sum * std::pow(10.0, -3.0 * unit_interval(random_bits(seed, 99, i))));
  }
  return out;
}

/// A matrix, a vector, a convolution's kernel with a gap before it, and a tail that belongs to no part, where `count` is enough for that.
inline CompressedBuffer test_buffer(int64_t count) {
  CompressedBuffer buffer{.name = "test"};
  const int64_t rows = count / 40;
  if (rows >= 2) {
    buffer.parts.push_back({0, {rows, 20}});
    buffer.parts.push_back({rows * 20, {rows}});
    buffer.parts.push_back({rows * 21 + 3, {rows, 3, 2, 2}});
  }
  return buffer;
}

}  // namespace cohort

#pragma once
// Pictures of bytes times a linear layer's weights, in whole numbers: what an evaluation of a chain of linear layers spends its time on.
// How exact and how quick: byte_product.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/data/source.h"

namespace cohort {

/// Bytes of pictures and what a model gets for one: byte x factor + term, by channel. Immutable; any number of threads.
struct ByteRows {
  /// None where `source` has no bytes in memory.
  static std::optional<ByteRows> of(const DataSource& source, int64_t num_samples);
  at::Tensor values;  ///< {samples, elements} int8: the byte - 128.
  std::vector<double> factor, term;
};

/// One thread.
class ByteProduct {
 public:
  /// Whether this processor multiplies bytes so much faster than floats that the product pays for a layer with that many inputs.
  static bool pays(int64_t num_inputs);

  /// Reads `weight` {num_outputs, num_inputs}, floats, for rows like these; again after each change of it.
  void read_weight(const at::Tensor& weight, const ByteRows& rows);
  /// What the model gets for the rows [begin, end) times the transposed weight: `out` {end - begin, num_outputs}, contiguous. A row's bits
  /// depend on the row and on the weight alone. An output whose weights are not all finite is NaN.
  void multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out);

 private:
  at::Tensor digits_;                               // {4 x num_outputs, num_inputs}, int8: first the lowest digits of all outputs.
  at::Tensor sums_;                                 // {rows, 4 x num_outputs}, int32.
  std::vector<double> scales_, sums_of_q_, terms_;  // By output.
};

}  // namespace cohort

#pragma once
// Pictures of bytes times floats, in whole numbers: the products of a chain's first linear layer, where evaluations and steps of large
// batches spend their time. How exact and how quick: byte_product.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

/// Bytes of pictures and what a model gets for one: (byte + offset) x factor, by channel.
struct ByteRows {
  /// The first samples of `source`; none where it has no bytes in memory.
  static std::optional<ByteRows> of(const DataSource& source, int64_t num_samples);
  at::Tensor values;  ///< {samples, elements} int8: the byte - 128.
  std::vector<double> factor, offset;
};

/// The bytes of a source's first picture, behind them those of the others; null where they are not in memory.
const uint8_t* bytes_in_memory(const DataSource& source);
/// Bytes as ByteRows have them: each less 128.
void write_signed(const uint8_t* from, int64_t count, int8_t* to);

/// A matrix of floats as whole numbers of four digits of a byte.
struct ByteDigits {
  /// Of `matrix` {rows, columns}, contiguous, times `factor`; `fixed` sums a row's whole numbers times `offset` (both: by equal runs of
  /// columns).
  void read(const at::Tensor& matrix, std::span<const double> factor, std::span<const double> offset);
  at::Tensor values;                  ///< {4 x rows, columns} int8: first the lowest digits of all rows.
  std::vector<double> scales, fixed;  ///< By row; its numbers are its whole numbers x scale. NaN where not all of them are finite.
};

/// One thread.
class ByteProduct {
 public:
  /// Whether this processor multiplies bytes so much faster than floats that evaluations gain, for a layer with that many inputs.
  static bool pays(int64_t num_inputs);
  /// Whether the gradient of that many samples gains too: weights change with each step.
  static bool pays_to_train(int64_t num_samples);

  /// Reads `weight` {num_outputs, num_inputs}, floats, for rows like these; again after each change of it.
  void read_weight(const at::Tensor& weight, const ByteRows& rows);
  /// What the model gets for the rows [begin, end) times the transposed weight: `out` {end - begin, num_outputs}, contiguous. A row's bits
  /// depend on the row and on the weight alone. An output whose weights are not all finite is NaN.
  void multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out);
  /// The transposed `output_gradient` {samples, num_outputs} times what the model gets for all `rows`, into `weight_gradient` {num_outputs,
  /// num_inputs} or, with `accumulate`, added there; both contiguous floats. The bits depend on no order of the samples.
  void multiply_gradient(const ByteRows& rows, const at::Tensor& output_gradient, bool accumulate, at::Tensor& weight_gradient);

 private:
  ByteDigits weight_, gradient_;
  at::Tensor sums_, gradient_sums_;  // {rows, 4 x num_outputs} and {4 x num_outputs, num_inputs}, int32.
  at::Tensor transposed_;            // {num_outputs, samples}.
};

}  // namespace cohort

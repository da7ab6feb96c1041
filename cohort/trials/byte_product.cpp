// Products of pictures and floats in whole numbers. A model gets (u + b) f for the byte u (b and f: by channel, from mean and deviation).
//
//   z = x W'. 1. W, after each change: with 2^e above the largest |w f| of an output, q = w f 2^(30 - e), cut to a whole number, and
//                q = d0 + 256 d1 + 256^2 d2 + 256^3 d3 with digits d from -128 to 127, four bytes.
//             2. sum (u - 128) d for each output and digit: LibTorch's product of bytes (oneDNN), with sums of 32 bits, exact.
//             3. z = 2^(e - 30) (sum (u - 128) q + sum (128 + b) q), put together in doubles, where it is exact up to the scale, and
//                rounded to float once.
//   dW = g' x. The same with g in the place of w, by output over the samples: q = g 2^(30 - e), and
//              dW = f 2^(e - 30) (sum (u - 128) q + (128 + b) sum q).
//
// Error: what q leaves of a float, 2^-30 of its row's largest, and the last rounding; a product of floats rounds after each addition. The
// bits depend on no order of sums, so on no chunk and no number of threads.
// Cost: 4 samples outputs inputs products of bytes each. Processors with AMX make them at 8 to 16 times the rate of floats: 1.7 ms instead
// of 4.3 for z of 5,000 pictures of 784 bytes and 64 outputs. Without, or for short rows, floats are as fast (bench/byte_product.py). W has
// to be read, and dW put together, in each step: that pays from 512 samples on.

#include "cohort/trials/byte_product.h"

#include <ATen/ops/_int_mm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "cohort/data/images/image_source.h"
#include "cohort/parallel/common/vector_loops.h"

namespace cohort {
namespace {

constexpr int64_t kNumDigits = 4;
constexpr int kBits = 30;
constexpr int kOffset = 128;  // From a byte to int8.
constexpr double kBase = 256;
constexpr double kSmallestMagnitude = 0x1p-90;  // Floats below it are nothing beside the rest; the scale stays a double.
constexpr int64_t kLeastInputs = 512, kLeastSamples = 512;
constexpr int64_t kMostTerms = (INT64_C(1) << 31) / (kOffset * kOffset) - 1;  // Of a sum of 32 bits.

COHORT_VECTOR_LOOP uint32_t largest_magnitude(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  return largest;
}

/// Digits of the values x `factor`, `apart` bytes from each other; returns the sum of the whole numbers. With 128 added to the lower three,
/// digits are the bytes of a whole number.
COHORT_VECTOR_LOOP int64_t write_digits(const float* values, double factor, int64_t count, int8_t* to, int64_t apart) {
  constexpr uint32_t kDigitOffsets = 0x00808080;
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto q = static_cast<int32_t>(static_cast<double>(values[i]) * factor);
    const uint32_t digits = (static_cast<uint32_t>(q) + kDigitOffsets) ^ kDigitOffsets;
    sum += q;
    to[i] = static_cast<int8_t>(digits);
    to[i + apart] = static_cast<int8_t>(digits >> 8);
    to[i + 2 * apart] = static_cast<int8_t>(digits >> 16);
    to[i + 3 * apart] = static_cast<int8_t>(digits >> 24);
  }
  return sum;
}

COHORT_VECTOR_LOOP void subtract_offset(const uint8_t* from, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(from[i] - kOffset);
}

COHORT_INLINE double join(int32_t d0, int32_t d1, int32_t d2, int32_t d3) {
  const double upper = static_cast<double>(d3) * kBase + static_cast<double>(d2);
  return (upper * kBase + static_cast<double>(d1)) * kBase + static_cast<double>(d0);
}

/// Rows with the sums of each output's digits.
COHORT_VECTOR_LOOP void join_rows(const int32_t* sums, const double* fixed, const double* scales, int64_t num_rows, int64_t num_outputs,
                                  float* out) {
  for (int64_t row = 0; row < num_rows; ++row, sums += kNumDigits * num_outputs, out += num_outputs)
    for (int64_t i = 0; i < num_outputs; ++i) {
      const double whole = join(sums[i], sums[num_outputs + i], sums[2 * num_outputs + i], sums[3 * num_outputs + i]);
      out[i] = static_cast<float>((whole + fixed[i]) * scales[i]);
    }
}

/// One output's sums, those of its digits `apart` from each other.
COHORT_VECTOR_LOOP void join_inputs(const int32_t* sums, int64_t apart, double fixed, double scale, int64_t count, bool accumulate,
                                    float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const double whole = join(sums[i], sums[apart + i], sums[2 * apart + i], sums[3 * apart + i]);
    const auto value = static_cast<float>((whole + fixed) * scale);
    out[i] = accumulate ? out[i] + value : value;
  }
}

void resize(at::Tensor& tensor, int64_t num_rows, int64_t num_columns, at::ScalarType type) {
  if (!tensor.defined() || tensor.size(0) != num_rows || tensor.size(1) != num_columns) tensor = at::empty({num_rows, num_columns}, type);
}

}  // namespace

const uint8_t* bytes_in_memory(const DataSource& source) {
  const auto* const images = dynamic_cast<const ImageSource*>(&source);
  return images ? images->bytes() : nullptr;
}

void write_signed(const uint8_t* from, int64_t count, int8_t* to) { subtract_offset(from, count, to); }

std::optional<ByteRows> ByteRows::of(const DataSource& source, int64_t num_samples) {
  const auto* const images = dynamic_cast<const ImageSource*>(&source);
  if (!images) return std::nullopt;
  ByteRows rows;
  rows.values = at::empty({num_samples, source.shape().input_elements()}, at::kChar);
  write_signed(images->bytes(), rows.values.numel(), rows.values.mutable_data_ptr<int8_t>());
  constexpr double kLargestByte = 255;
  const ChannelStatistics& statistics = images->statistics();
  for (size_t c = 0; c < statistics.mean.size(); ++c) {
    rows.factor.push_back(1 / (kLargestByte * statistics.deviation[c]));
    rows.offset.push_back(-kLargestByte * statistics.mean[c]);
  }
  return rows;
}

void ByteDigits::read(const at::Tensor& matrix, std::span<const double> factor, std::span<const double> offset) {
  const int64_t num_rows = matrix.size(0), num_columns = matrix.size(1), run = num_columns / std::ssize(factor);
  resize(values, kNumDigits * num_rows, num_columns, at::kChar);
  scales.assign(static_cast<size_t>(num_rows), std::numeric_limits<double>::quiet_NaN());
  fixed.assign(static_cast<size_t>(num_rows), 0.0);
  const float* row = matrix.const_data_ptr<float>();
  int8_t* digits = values.mutable_data_ptr<int8_t>();
  for (size_t i = 0; i < scales.size(); ++i, row += num_columns, digits += num_columns) {
    double largest = kSmallestMagnitude;
    bool is_finite = true;
    for (size_t c = 0; c < factor.size(); ++c) {
      const uint32_t magnitude = largest_magnitude(row + static_cast<int64_t>(c) * run, run);
      is_finite = is_finite && magnitude < kInfinityBits;
      largest = std::max(largest, static_cast<double>(float_of(magnitude)) * factor[c]);
    }
    if (!is_finite) continue;
    int exponent = 0;
    std::frexp(largest, &exponent);
    scales[i] = std::ldexp(1.0, exponent - kBits);
    for (size_t c = 0; c < factor.size(); ++c) {
      const int64_t first = static_cast<int64_t>(c) * run;
      const double of_one = std::ldexp(factor[c], kBits - exponent);
      fixed[i] += offset[c] * static_cast<double>(write_digits(row + first, of_one, run, digits + first, num_rows * num_columns));
    }
  }
}

bool ByteProduct::pays(int64_t num_inputs) {
#if defined(__x86_64__) && defined(__GNUC__)
  // Who tells oneDNN to leave instructions out gets floats.
  static const bool is_fast = __builtin_cpu_supports("amx-int8") && !std::getenv("ONEDNN_MAX_CPU_ISA") && !std::getenv("DNNL_MAX_CPU_ISA");
  return is_fast && num_inputs >= kLeastInputs && num_inputs <= kMostTerms;
#else
  return false;
#endif
}

bool ByteProduct::pays_to_train(int64_t num_samples) { return num_samples >= kLeastSamples && num_samples <= kMostTerms; }

void ByteProduct::read_weight(const at::Tensor& weight, const ByteRows& rows) {
  std::vector<double> offset = rows.offset;
  for (double& of_channel : offset) of_channel += kOffset;
  weight_.read(weight, rows.factor, offset);
}

void ByteProduct::multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out) {
  const int64_t num_rows = end - begin;
  resize(sums_, num_rows, weight_.values.size(0), at::kInt);
  at::_int_mm_out(sums_, rows.values.narrow(0, begin, num_rows), weight_.values.t());
  join_rows(sums_.const_data_ptr<int32_t>(), weight_.fixed.data(), weight_.scales.data(), num_rows, std::ssize(weight_.scales),
            out.mutable_data_ptr<float>());
}

void ByteProduct::multiply_gradient(const ByteRows& rows, const at::Tensor& output_gradient, bool accumulate, at::Tensor& weight_gradient) {
  const int64_t num_samples = output_gradient.size(0), num_outputs = output_gradient.size(1), num_inputs = rows.values.size(1);
  resize(transposed_, num_outputs, num_samples, at::kFloat);
  transposed_.copy_(output_gradient.t());
  constexpr double kOne = 1;
  gradient_.read(transposed_, {&kOne, 1}, {&kOne, 1});
  resize(gradient_sums_, kNumDigits * num_outputs, num_inputs, at::kInt);
  at::_int_mm_out(gradient_sums_, gradient_.values, rows.values);
  const int32_t* sums = gradient_sums_.const_data_ptr<int32_t>();
  float* out = weight_gradient.mutable_data_ptr<float>();
  const int64_t plane = num_inputs / std::ssize(rows.factor);
  for (size_t i = 0; i < gradient_.scales.size(); ++i)
    for (size_t c = 0; c < rows.factor.size(); ++c, sums += plane, out += plane)
      join_inputs(sums, num_outputs * num_inputs, (kOffset + rows.offset[c]) * gradient_.fixed[i], rows.factor[c] * gradient_.scales[i],
                  plane, accumulate, out);
}

}  // namespace cohort

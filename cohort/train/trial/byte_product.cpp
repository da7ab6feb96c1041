// A product of pictures and weights in whole numbers. A model gets u f + t for the byte u (f and t: by channel, from mean and deviation).
//
//   1. Weights, once an evaluation. With 2^e above the largest |w f| of an output: q = w f 2^(30 - e), cut to a whole number, and
//      q = d0 + 256 d1 + 256^2 d2 + 256^3 d3 with digits d from -128 to 127, four bytes.
//   2. sum (u - 128) d for each output and digit: LibTorch's product of bytes (oneDNN), with sums of 32 bits, exact.
//   3. z = 2^(e - 30) (sum (u - 128) q + 128 sum q) + sum w t, put together in doubles, where it is exact up to the scale, and rounded to
//      float once.
//
// Error: what q leaves of a weight, 2^-30 of its row's largest, and the last rounding; a product in floats rounds after each addition. The
// bits depend on no order of sums, so on no chunk and no number of threads.
// Cost of n rows: 4 n outputs inputs products of bytes. Processors with AMX make them at 8 to 16 times the rate of floats: 1.7 ms instead
// of 4.3 for 5,000 pictures of 784 bytes and 64 outputs. Without, or for short rows, floats are as fast (bench/byte_product.py).

#include "cohort/train/trial/byte_product.h"

#include <ATen/ops/_int_mm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "cohort/data/images/image_source.h"
#include "cohort/parallel/vector_loops.h"

namespace cohort {
namespace {

constexpr int64_t kNumDigits = 4;
constexpr int kWeightBits = 30;
constexpr int kOffset = 128;  // From a byte to int8.
constexpr double kBase = 256;
constexpr double kSmallestMagnitude = 0x1p-90;  // Weights below it are nothing beside the bias; the scale stays a double.
constexpr int64_t kLeastInputs = 512;

COHORT_VECTOR_LOOP uint32_t largest_magnitude(const float* weights, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(weights[i]));
  return largest;
}

/// Digits of the weights x `factor`, `apart` bytes from each other; returns their sum. With 128 added to the lower three, digits are the
/// bytes of a whole number.
COHORT_VECTOR_LOOP int64_t write_digits(const float* weights, double factor, int64_t count, int8_t* to, int64_t apart) {
  constexpr uint32_t kDigitOffsets = 0x00808080;
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto q = static_cast<int32_t>(static_cast<double>(weights[i]) * factor);
    const uint32_t digits = (static_cast<uint32_t>(q) + kDigitOffsets) ^ kDigitOffsets;
    sum += q;
    to[i] = static_cast<int8_t>(digits);
    to[i + apart] = static_cast<int8_t>(digits >> 8);
    to[i + 2 * apart] = static_cast<int8_t>(digits >> 16);
    to[i + 3 * apart] = static_cast<int8_t>(digits >> 24);
  }
  return sum;
}

COHORT_VECTOR_LOOP void join_digits(const int32_t* sums, const double* sums_of_q, const double* scales, const double* terms,
                                    int64_t num_rows, int64_t num_outputs, float* out) {
  for (int64_t row = 0; row < num_rows; ++row, sums += kNumDigits * num_outputs, out += num_outputs)
    for (int64_t i = 0; i < num_outputs; ++i) {
      const double upper = static_cast<double>(sums[3 * num_outputs + i]) * kBase + static_cast<double>(sums[2 * num_outputs + i]);
      const double whole = (upper * kBase + static_cast<double>(sums[num_outputs + i])) * kBase + static_cast<double>(sums[i]);
      out[i] = static_cast<float>((whole + kOffset * sums_of_q[i]) * scales[i] + terms[i]);
    }
}

double sum_of(const float* weights, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(weights[i]);
  return sum;
}

}  // namespace

std::optional<ByteRows> ByteRows::of(const DataSource& source, int64_t num_samples) {
  const auto* const images = dynamic_cast<const ImageSource*>(&source);
  if (!images) return std::nullopt;
  ByteRows rows;
  const int64_t count = num_samples * source.shape().input_elements();
  rows.values = at::empty({num_samples, source.shape().input_elements()}, at::kChar);
  std::transform(images->bytes(), images->bytes() + count, rows.values.mutable_data_ptr<int8_t>(),
                 [](uint8_t byte) { return static_cast<int8_t>(byte - kOffset); });
  constexpr double kLargestByte = 255;
  const ChannelStatistics& statistics = images->statistics();
  for (size_t c = 0; c < statistics.mean.size(); ++c) {
    rows.factor.push_back(1 / (kLargestByte * statistics.deviation[c]));
    rows.term.push_back(-statistics.mean[c] / statistics.deviation[c]);
  }
  return rows;
}

bool ByteProduct::pays(int64_t num_inputs) {
#if defined(__x86_64__) && defined(__GNUC__)
  // Who tells oneDNN to leave instructions out gets floats.
  static const bool is_fast = __builtin_cpu_supports("amx-int8") && !std::getenv("ONEDNN_MAX_CPU_ISA") && !std::getenv("DNNL_MAX_CPU_ISA");
  return is_fast && num_inputs >= kLeastInputs;
#else
  return false;
#endif
}

void ByteProduct::read_weight(const at::Tensor& weight, const ByteRows& rows) {
  const int64_t num_outputs = weight.size(0), num_inputs = weight.size(1), plane = num_inputs / std::ssize(rows.factor);
  if (!digits_.defined() || digits_.size(0) != kNumDigits * num_outputs || digits_.size(1) != num_inputs)
    digits_ = at::empty({kNumDigits * num_outputs, num_inputs}, at::kChar);
  for (auto* const of_outputs : {&scales_, &sums_of_q_, &terms_}) of_outputs->assign(static_cast<size_t>(num_outputs), 0.0);
  const float* row = weight.const_data_ptr<float>();
  int8_t* digits = digits_.mutable_data_ptr<int8_t>();
  for (size_t output = 0; output < scales_.size(); ++output, row += num_inputs, digits += num_inputs) {
    double largest = kSmallestMagnitude;
    bool is_finite = true;
    for (size_t c = 0; c < rows.factor.size(); ++c) {
      const uint32_t magnitude = largest_magnitude(row + static_cast<int64_t>(c) * plane, plane);
      is_finite = is_finite && magnitude < kInfinityBits;
      largest = std::max(largest, static_cast<double>(float_of(magnitude)) * rows.factor[c]);
    }
    if (!is_finite) {
      scales_[output] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    scales_[output] = std::ldexp(1.0, exponent - kWeightBits);
    for (size_t c = 0; c < rows.factor.size(); ++c) {
      const int64_t first = static_cast<int64_t>(c) * plane;
      sums_of_q_[output] += static_cast<double>(
          write_digits(row + first, std::ldexp(rows.factor[c], kWeightBits - exponent), plane, digits + first, num_outputs * num_inputs));
      terms_[output] += sum_of(row + first, plane) * rows.term[c];
    }
  }
}

void ByteProduct::multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out) {
  const int64_t num_rows = end - begin, width = digits_.size(0);
  if (!sums_.defined() || sums_.size(0) != num_rows || sums_.size(1) != width) sums_ = at::empty({num_rows, width}, at::kInt);
  at::_int_mm_out(sums_, rows.values.narrow(0, begin, num_rows), digits_.t());
  join_digits(sums_.const_data_ptr<int32_t>(), sums_of_q_.data(), scales_.data(), terms_.data(), num_rows, std::ssize(scales_),
              out.mutable_data_ptr<float>());
}

}  // namespace cohort

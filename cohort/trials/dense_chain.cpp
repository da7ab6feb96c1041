// Forward and backward of a chain x0 -> z1 = x0 W1' + b1 -> x1 = relu(z1) -> ... -> logits -> mean cross-entropy, without autograd.
//
//   forward   z = x W' by one product; bias and ReLU in one pass over z, in place: autograd's saved output is the next layer's input
//   loss      p = softmax of each row; the gradient of the mean loss is scale / n (p - target), target = one-hot or smoothed labels
//   backward  from the last layer: mask by the output (ReLU) and sum rows (bias) in one pass; W's gradient g' x by one product, directly
//             into the flat gradient; x's gradient g W by one product, for all but the first layer
//
// Cost: 3 L - 1 products for L linear layers and two passes over each activation; no allocation unless the number of samples changes.
// Products are LibTorch's and the ReLU is exact, so results differ from autograd's only by rounding: of biases (added after the product
// here, before it there), of their gradients (sums in row order here) and of the softmax. Measurements: docs/algorithms/trial_loop.md.
//
// Integer products of the first layer with pictures of bytes. The model's input is (u + b) f for the byte u (b and f by channel, from mean
// and deviation).
//
//   z = x W'. 1. W, after each change: with 2^e above the largest |w f| of an output, q = w f 2^(30 - e), truncated to an integer, and
//                q = d0 + 256 d1 + 256^2 d2 + 256^3 d3 with digits d from -128 to 127, four bytes.
//             2. sum (u - 128) d for each output and digit: LibTorch's product of bytes (oneDNN), with 32-bit sums, exact.
//             3. z = 2^(e - 30) (sum (u - 128) q + sum (128 + b) q), in doubles, where it is exact up to the scale, rounded to float once.
//   dW = g' x. The same with g in place of w, by output over the samples: q = g 2^(30 - e), and
//              dW = f 2^(e - 30) (sum (u - 128) q + (128 + b) sum q).
//
// Error: the truncation of q, 2^-30 of its row's largest value, and the last rounding; a product of floats rounds after each addition. The
// bits do not depend on the order of sums, so not on chunks or the number of threads.
// Cost: 4 samples outputs inputs products of bytes. Processors with AMX compute them at 8 to 16 times the rate of floats: 1.7 ms instead of
// 4.3 for z of 5,000 pictures of 784 bytes and 64 outputs. Without AMX, or for short rows, floats are as fast (bench/byte_product.py). W is
// read, and dW put together, in each step, which pays from 512 samples on.
#include "cohort/trials/dense_chain.h"

#include "cohort/models/graph/layer_graph.h"

#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/data/images/image_source.h"
#include "cohort/parallel/common/vector_loops.h"

namespace cohort {
namespace {

constexpr int64_t kNumDigits = 4;
constexpr int kBits = 30;
constexpr int kOffset = 128;  // Subtracted from a byte for int8.
constexpr double kBase = 256;
constexpr double kSmallestMagnitude = 0x1p-90;  // Smaller floats are negligible; keeps the scale finite.
constexpr int64_t kLeastInputs = 512, kLeastSamples = 512;
constexpr int64_t kMostTerms = (INT64_C(1) << 31) / (kOffset * kOffset) - 1;  // In a 32-bit sum.

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

/// Floats from rows with the sums of each output's digits.
COHORT_VECTOR_LOOP void join_rows(const int32_t* sums, const double* fixed, const double* scales, int64_t num_rows, int64_t num_outputs,
                                  float* out) {
  for (int64_t row = 0; row < num_rows; ++row, sums += kNumDigits * num_outputs, out += num_outputs)
    for (int64_t i = 0; i < num_outputs; ++i) {
      const double whole = join(sums[i], sums[num_outputs + i], sums[2 * num_outputs + i], sums[3 * num_outputs + i]);
      out[i] = static_cast<float>((whole + fixed[i]) * scales[i]);
    }
}

/// Floats from the sums of one output, whose digits are `apart` from each other.
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

/// NaN is kept, so that a diverged trial is not hidden.
COHORT_VECTOR_LOOP void add_bias(float* rows, const float* bias, int64_t num_rows, int64_t width) {
  for (int64_t i = 0; i < num_rows; ++i, rows += width)
    for (int64_t j = 0; j < width; ++j) rows[j] += bias[j];
}

COHORT_VECTOR_LOOP void add_bias_relu(float* rows, const float* bias, int64_t num_rows, int64_t width) {
  for (int64_t i = 0; i < num_rows; ++i, rows += width)
    for (int64_t j = 0; j < width; ++j) {
      const float z = rows[j] + bias[j];
      rows[j] = z < 0 ? 0 : z;
    }
}

COHORT_VECTOR_LOOP void relu(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0 : values[i];
}

COHORT_VECTOR_LOOP void mask(float* gradient, const float* output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = output[i] <= 0 ? 0 : gradient[i];
}

COHORT_VECTOR_LOOP void add_rows(float* __restrict sums, const float* __restrict rows, int64_t num_rows, int64_t width) {
  for (int64_t i = 0; i < num_rows; ++i, rows += width)
    for (int64_t j = 0; j < width; ++j) sums[j] += rows[j];
}

struct Row {
  float largest = 0;
  int64_t argmax = 0;
};

Row largest_of(const float* logits, int64_t num_classes) {
  Row row{logits[0], 0};
  for (int64_t j = 1; j < num_classes; ++j)
    if (logits[j] > row.largest) row = {logits[j], j};
  return row;
}

void check_target(int64_t target, int64_t num_classes) {
  if (target < 0 || target >= num_classes)
    fail(ErrorCode::kBadInput, "a sample has the label ", target, ", the model has ", num_classes, " classes");
}

/// Returns the sum of the rows' losses; `gradient` gets `factor` times its derivative.
double loss_and_gradient(const at::Tensor& logits, const at::Tensor& target, double label_smoothing, double factor, at::Tensor& gradient) {
  const int64_t num_rows = logits.size(0), num_classes = logits.size(1);
  const int64_t* const label = target.const_data_ptr<int64_t>();
  const double uniform = label_smoothing / static_cast<double>(num_classes);
  const auto scale = static_cast<float>(factor), on_target = static_cast<float>(factor * (1 - label_smoothing)),
             everywhere = static_cast<float>(factor * uniform);
  double total = 0;
  const float* z = logits.const_data_ptr<float>();
  float* g = gradient.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_rows; ++i, z += num_classes, g += num_classes) {
    check_target(label[i], num_classes);
    const float largest = largest_of(z, num_classes).largest;
    float sum_of_logits = 0;
    for (int64_t j = 0; j < num_classes; ++j) sum_of_logits += g[j] = z[j] - largest;
    total -=
        (1 - label_smoothing) * static_cast<double>(g[label[i]]) + (label_smoothing > 0 ? uniform * static_cast<double>(sum_of_logits) : 0);
  }
  at::exp_(gradient);
  g = gradient.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_rows; ++i, g += num_classes) {
    float sum = 0;
    for (int64_t j = 0; j < num_classes; ++j) sum += g[j];
    total += static_cast<double>(std::log(sum));
    const float factor_of_row = scale / sum;
    for (int64_t j = 0; j < num_classes; ++j) g[j] = g[j] * factor_of_row - everywhere;
    g[label[i]] -= on_target;
  }
  return total;
}

bool reads_previous(const LayerGraph::Layer& layer, size_t index) {
  return layer.inputs.size() == 1 && layer.inputs[0] == static_cast<int>(index) - 1;
}

/// The segment of a parameter in the flat arrays, or null.
const TrialWeights::Segment* segment_of(const TrialWeights& weights, const at::Tensor& parameter) {
  for (const TrialWeights::Segment& segment : weights.segments())
    if (segment.parameter.is_same(parameter)) return &segment;
  return nullptr;
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
  // If the environment limits the instructions of oneDNN, floats are used.
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

std::unique_ptr<DenseChain> DenseChain::make(const LayerGraph& model, const DataShape& shape, const TrialWeights& weights) {
  if (shape.kind != DataShape::Kind::kImage || shape.targets_per_sample() != 1 || shape.has_numbers()) return nullptr;
  auto chain = std::make_unique<DenseChain>();
  int64_t width = shape.input_elements();
  bool is_flat = shape.input.size() == 1;
  size_t num_segments = 0;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerGraph::Layer& layer = model.layers()[i];
    if (!reads_previous(layer, i) || model.is_recomputed(i)) return nullptr;
    if (layer.kind == "flatten" && chain->layers_.empty()) {
      is_flat = true;
    } else if (layer.kind == "relu" && !chain->layers_.empty()) {
      chain->layers_.back().relu = true;
    } else if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(layer.module.get()); linear && layer.kind == "linear") {
      const TrialWeights::Segment* const weight = segment_of(weights, linear->weight);
      const TrialWeights::Segment* const bias = linear->bias.defined() ? segment_of(weights, linear->bias) : nullptr;
      if (!is_flat || !weight || (linear->bias.defined() && !bias) || linear->weight.size(1) != width) return nullptr;
      width = linear->weight.size(0);
      const at::Tensor plain = linear->weight.detach();
      chain->layers_.push_back({.weight = plain,
                                .transposed = plain.t(),
                                .bias = bias ? linear->bias.detach() : at::Tensor(),
                                .weight_offset = weight->offset,
                                .bias_offset = bias ? bias->offset : 0});
      num_segments += bias ? 2 : 1;
    } else {
      return nullptr;
    }
  }
  // A layer that is used twice has fewer segments than uses.
  if (chain->layers_.empty() || num_segments != weights.segments().size()) return nullptr;
  return chain;
}

void DenseChain::resize(int64_t num_samples, bool with_gradients) {
  for (Layer& layer : layers_) {
    const int64_t width = layer.weight.size(0);
    if (!layer.output.defined() || layer.output.size(0) != num_samples) {
      layer.output = at::empty({num_samples, width}, at::kFloat);
      layer.output_gradient.reset();
    }
    if (!with_gradients || layer.output_gradient.defined()) continue;
    layer.output_gradient = at::empty({num_samples, width}, at::kFloat);
    layer.output_gradient_transposed = layer.output_gradient.t();
  }
}

const at::Tensor& DenseChain::forward(const at::Tensor& input) {
  at::mm_out(layers_.front().output, input, layers_.front().transposed);
  return forward_from_first_product();
}

/// Continues with the product of the first layer in its output.
const at::Tensor& DenseChain::forward_from_first_product() {
  const at::Tensor* in = nullptr;
  for (Layer& layer : layers_) {
    if (in) at::mm_out(layer.output, *in, layer.transposed);
    float* const rows = layer.output.mutable_data_ptr<float>();
    const int64_t num_samples = layer.output.size(0), width = layer.weight.size(0);
    if (layer.bias.defined()) (layer.relu ? add_bias_relu : add_bias)(rows, layer.bias.const_data_ptr<float>(), num_samples, width);
    else if (layer.relu) relu(rows, num_samples * width);
    in = &layer.output;
  }
  return *in;
}

void DenseChain::place_gradient(float* gradient) {
  if (gradient == gradient_) return;
  gradient_ = gradient;
  for (Layer& layer : layers_) layer.weight_gradient = at::from_blob(gradient + layer.weight_offset, layer.weight.sizes(), at::kFloat);
}

void DenseChain::add_product(Layer& layer, const at::Tensor& input, bool accumulate) {
  if (accumulate) at::addmm_out(layer.weight_gradient, layer.weight_gradient, layer.output_gradient_transposed, input);
  else at::mm_out(layer.weight_gradient, layer.output_gradient_transposed, input);
}

/// Called after forward. Computes all gradients but that of the first layer's weight.
double DenseChain::backward(const at::Tensor& target, const GradientOptions& options) {
  Layer& last = layers_.back();
  const int64_t num_samples = last.output.size(0);
  const double factor = options.scale / static_cast<double>(num_samples);
  const double total = loss_and_gradient(last.output, target, options.label_smoothing, factor, last.output_gradient);
  for (size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    const int64_t width = layer.weight.size(0);
    float* const g = layer.output_gradient.mutable_data_ptr<float>();
    if (layer.relu) mask(g, layer.output.const_data_ptr<float>(), num_samples * width);
    if (layer.bias.defined()) {
      float* const sums = gradient_ + layer.bias_offset;
      if (!options.accumulate) std::fill_n(sums, width, 0.0F);
      add_rows(sums, g, num_samples, width);
    }
    if (i == 0) break;
    add_product(layer, layers_[i - 1].output, options.accumulate);
    at::mm_out(layers_[i - 1].output_gradient, layer.output_gradient, layer.weight);
  }
  return total * factor;
}

double DenseChain::gradient(const at::Tensor& input, const at::Tensor& target, double label_smoothing, double scale, bool accumulate,
                            float* gradient) {
  const at::NoGradGuard no_grad;
  resize(input.size(0), true);
  place_gradient(gradient);
  const at::Tensor rows = input.view({input.size(0), layers_.front().weight.size(1)});
  forward(rows);
  const double loss = backward(target, {label_smoothing, scale, accumulate});
  add_product(layers_.front(), rows, accumulate);
  return loss;
}

double DenseChain::gradient(const ByteRows& rows, const at::Tensor& target, double label_smoothing, double scale, bool accumulate,
                            float* gradient) {
  const at::NoGradGuard no_grad;
  Layer& first = layers_.front();
  const int64_t num_samples = rows.values.size(0);
  resize(num_samples, true);
  place_gradient(gradient);
  read_weight_for(rows);
  first_product_.multiply(rows, 0, num_samples, first.output);
  forward_from_first_product();
  const double loss = backward(target, {label_smoothing, scale, accumulate});
  first_product_.multiply_gradient(rows, first.output_gradient, accumulate, first.weight_gradient);
  return loss;
}

LossSums DenseChain::sums_of(const at::Tensor& logits, const at::Tensor& target) {
  const int64_t num_rows = logits.size(0), num_classes = logits.size(1);
  const int64_t* const label = target.const_data_ptr<int64_t>();
  if (!exponentials_.defined() || exponentials_.size(0) != num_rows) exponentials_ = at::empty_like(logits);
  LossSums sums;
  const float* z = logits.const_data_ptr<float>();
  float* p = exponentials_.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_rows; ++i, z += num_classes, p += num_classes) {
    check_target(label[i], num_classes);
    const Row row = largest_of(z, num_classes);
    for (int64_t j = 0; j < num_classes; ++j) p[j] = z[j] - row.largest;
    sums.loss -= static_cast<double>(p[label[i]]);
    sums.num_wrong += row.argmax != label[i];
  }
  at::exp_(exponentials_);
  p = exponentials_.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_rows; ++i, p += num_classes) {
    float sum = 0;
    for (int64_t j = 0; j < num_classes; ++j) sum += p[j];
    sums.loss += static_cast<double>(std::log(sum));
  }
  return sums;
}

LossSums DenseChain::evaluate(const at::Tensor& input, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  resize(input.size(0), false);
  return sums_of(forward(input.view({input.size(0), layers_.front().weight.size(1)})), target);
}

LossSums DenseChain::evaluate(const ByteRows& rows, int64_t begin, int64_t end, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  resize(end - begin, false);
  first_product_.multiply(rows, begin, end, layers_.front().output);
  return sums_of(forward_from_first_product(), target);
}

}  // namespace cohort

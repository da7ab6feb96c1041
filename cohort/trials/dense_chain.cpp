// A chain x0 -> z1 = x0 W1' + b1 -> x1 = relu(z1) -> ... -> logits -> mean cross-entropy, by hand.
//
//   forward   z = x W' by one product; bias and ReLU in one pass over z, in place: autograd's saved output is the next layer's input
//   loss      p = softmax of each row; the gradient of the mean loss is scale / n (p - target), target = one-hot or smoothed labels
//   backward  from the last layer: mask by the output (ReLU) and sum rows (bias) in one pass; W's gradient g' x by one product, straight
//             into the flat gradient; x's gradient g W by one product, for all but the first layer
//
// Cost: 3 L - 1 products for L linear layers and two passes over each activation; nothing is allocated while the number of samples stays.
// Products are LibTorch's and the ReLU is exact, so results differ from autograd's by rounding alone: of biases (added after the product
// here, before it there), of their gradients (sums in row order here) and of the softmax. Measured, FC 64x3 on 28x28 pictures, one core:
// docs/algorithms/trial_loop.md.

#include "cohort/trials/dense_chain.h"

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
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/vector_loops.h"

namespace cohort {
namespace {

/// NaN passes through: a trial that diverged must not look well.
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

/// Where a parameter lies in the flat arrays, or null.
const TrialWeights::Segment* segment_of(const TrialWeights& weights, const at::Tensor& parameter) {
  for (const TrialWeights::Segment& segment : weights.segments())
    if (segment.parameter.is_same(parameter)) return &segment;
  return nullptr;
}

}  // namespace

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

/// The first layer's output has its product.
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

/// After forward: all but the gradient of the first layer's weight.
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

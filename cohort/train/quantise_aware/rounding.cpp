// Fake quantisation with straight-through gradients (Jacob et al. 2018, "Quantization and training of neural networks for efficient
// integer-arithmetic-only inference", section 3; Bengio et al. 2013 for the gradient).
//
//   weights  scale = max |w| of the row (or group) / L, w' = scale * round(w / scale)   L = 127 of 8 bits, 7 of 4 bits
//   samples  scale = (max(x, 0) - min(x, 0)) / 127, zero point z = round(-min(x, 0) / scale), x' = scale * (clamp(round(x / scale) + z,
//            0, 127) - z): 7 bits, as int8 kernels here have them (docs/guide/compress.md)
//   gradient that of x' goes to x, but for numbers beyond the clamp
//
// LibTorch's fake_quantize_per_channel_affine does the rounding and its backward in one pass each. Cost: two more passes over each weight
// and input in forward, one in backward, and a byte a number that is kept until then.
//
// Where we differ: Jacob et al. keep a moving range of each activation over all samples. Such a range is state that depends on which
// samples a rank has seen, so it would be another training on every layout. Here each sample has its own range. The file that is made at
// the end has ranges from calibration, as any static quantisation; they are a little coarser.

#include "cohort/train/quantise_aware/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace cohort {
namespace {

constexpr int64_t kSampleCodes = 127;

/// A scale that is not finite stays, so that what was not finite is not afterwards.
at::Tensor without_zeros(const at::Tensor& scales) { return at::where(scales == 0, at::ones_like(scales), scales); }

/// {rows, columns}, each row with its scale.
at::Tensor rounded_rows(const at::Tensor& rows, int64_t largest) {
  at::Tensor scales, zeros;
  {
    at::NoGradGuard no_grad;
    scales = without_zeros(rows.abs().amax(1) / static_cast<double>(largest));
    zeros = at::zeros(scales.sizes(), scales.options().dtype(at::kInt));
  }
  return at::fake_quantize_per_channel_affine(rows, scales, zeros, /*axis=*/0, -largest, largest);
}

}  // namespace

at::Tensor rounded_weight(const at::Tensor& weight, const QuantiseAware& how) {
  if (weight.numel() == 0) return weight;
  const int64_t largest = how.bits == 8 ? 127 : 7, rows = weight.size(0), columns = weight.numel() / rows;
  const at::Tensor flat = weight.reshape({rows, columns});
  if (how.group == 0 || how.group >= columns) return rounded_rows(flat, largest).view(weight.sizes());
  const int64_t num_groups = (columns + how.group - 1) / how.group, padding = num_groups * how.group - columns;
  const at::Tensor padded = padding == 0 ? flat : at::constant_pad_nd(flat, {0, padding});
  const at::Tensor rounded = rounded_rows(padded.view({rows * num_groups, how.group}), largest).view({rows, num_groups * how.group});
  return (padding == 0 ? rounded : rounded.narrow(1, 0, columns).contiguous()).view(weight.sizes());
}

at::Tensor rounded_samples(const at::Tensor& samples) {
  if (samples.dim() < 2 || samples.numel() == 0) return samples;
  at::Tensor scales, zeros;
  {
    at::NoGradGuard no_grad;
    const at::Tensor rows = samples.reshape({samples.size(0), -1});
    const at::Tensor lowest = rows.amin(1).clamp_max(0), highest = rows.amax(1).clamp_min(0);
    scales = without_zeros((highest - lowest) / static_cast<double>(kSampleCodes));
    // Numbers that are not finite get a zero point that exists: the training finds and names them itself.
    zeros = (-lowest / scales).nan_to_num(0, 0, 0).round().clamp(0, kSampleCodes).to(at::kInt);
  }
  return at::fake_quantize_per_channel_affine(samples, scales, zeros, /*axis=*/0, 0, kSampleCodes);
}

}  // namespace cohort

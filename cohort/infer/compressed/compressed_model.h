#pragma once
// Models that compute in int8: LibTorch's int8 kernels as modules, and the replacement of a model's layers by them.
//
// Weights are int8 with a scale a row. Activations are unsigned codes of 7 bits: on CPUs without VNNI instructions pairs of products are
// added in 16 bits, which 8-bit codes would overflow. So a file gives the same results everywhere.

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/PackedParams.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <vector>

#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/infer/compressed/compressed_form.h"

namespace cohort {

class LayerGraph;

/// Error(kBadInput) where this LibTorch has no int8 kernels for this CPU.
void check_int8_kernels();

/// Nearest int8 codes of floats, clamped to 8 bits; int8 codes unchanged.
at::Tensor to_int8(const at::Tensor& input, const CodeScale& scale);

/// {..., in} -> {..., out}. Not thread-safe, like all modules here.
class Int8Linear : public torch::nn::Module {
 public:
  /// codes {out, in} int8, a scale a row; `bias` {out} floats or undefined.
  Int8Linear(const Codes& weight, const at::Tensor& bias);

  at::Tensor forward_static(const at::Tensor& input, const CompressedLayer& how) const;
  /// Scales `input` by its minimum and maximum over the whole batch.
  at::Tensor forward_dynamic(const at::Tensor& input) const;

 private:
  c10::intrusive_ptr<LinearPackedParamsBase> packed_;
};

/// {n, in, h, w} -> {n, out, h', w'}, int8 in and out.
class Int8Conv2d : public torch::nn::Module {
 public:
  /// Stride, padding and groups are those of `conv`. Error(kBadInput) unless has_int8_kernel(conv).
  Int8Conv2d(const Codes& weight, const at::Tensor& bias, const torch::nn::Conv2dImpl& conv);

  at::Tensor forward_static(const at::Tensor& input, const CompressedLayer& how) const;

 private:
  using Packed = c10::intrusive_ptr<ConvPackedParamsBase<2>>;
  const Packed& packed_for(const at::Tensor& input) const;

  /// Packed for one input size and number of threads.
  struct Kernel {
    std::vector<int64_t> sizes;
    int threads;
    Packed packed;
  };
  mutable std::vector<Kernel> kernels_;  ///< Most recently used first; never empty.
};

/// Whether Int8Conv2d can replace `conv`: it pads with zeros, by an explicit number of pixels.
bool has_int8_kernel(const torch::nn::Conv2dImpl& conv);

/// left + right, of int8 tensors.
at::Tensor int8_sum(const at::Tensor& left, const at::Tensor& right, const CompressedLayer& how);

/// Replaces layers of `model`, whose weights may be any, by the int8 kernels of `form`, and reads all other tensors, decoding codes. The
/// model is then in eval mode and, unless `form` is empty, cannot be trained. Error(kBadInput) where form and model do not belong together.
void make_compressed(LayerGraph& model, const CompressedForm& form, const ReadTensor& read);

}  // namespace cohort

#pragma once
// A model that computes as a compressed file says: LibTorch's int8 kernels as modules, and the layers that get them.

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/PackedParams.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/infer/compressed/compressed_form.h"

namespace cohort {

class LayerGraph;

// LibTorch's int8 kernels as modules. Weights are int8 with a scale a row; inputs are unsigned codes of 7 bits, because on CPUs without
// VNNI instructions pairs of products are added in 16 bits, which 8 bits overflow: so a file gives the same answers everywhere.

/// Codes of activations go from 0 to this.
inline constexpr int64_t kLargestActivationCode = 127;

/// Whether this LibTorch has int8 kernels for this CPU. For a message that says what to do: check_int8_kernels().
bool has_int8_kernels();
/// Error(kBadInput) where it has none.
void check_int8_kernels();

/// `input` as int8 codes; itself where it is that already. Floats in: nearest code, ends clamped by the kernel's 8 bits.
at::Tensor to_int8(const at::Tensor& input, const CodeScale& scale);
/// The floats that int8 codes stand for; itself where it is floats already.
at::Tensor to_floats(const at::Tensor& input);

/// {..., in} -> {..., out}. Not thread-safe, as all modules here.
class Int8Linear : public torch::nn::Module {
 public:
  /// codes {out, in} int8, a scale a row; `bias` {out} floats or undefined.
  Int8Linear(const Codes& weight, const at::Tensor& bias);

  at::Tensor forward_static(const at::Tensor& input, const CompressedLayer& how) const;
  /// Scaled by the least and the largest number of `input`, all of the batch together.
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

  /// Of inputs of one size, and a number of threads; the newest first, never empty.
  struct Kernel {
    std::vector<int64_t> sizes;
    int threads;
    Packed packed;
  };
  mutable std::vector<Kernel> kernels_;
};

/// Whether Int8Conv2d does what `conv` does: it pads with zeros, by a number of pixels that its options say.
bool has_int8_kernel(const torch::nn::Conv2dImpl& conv);

/// left + right, of int8 tensors.
at::Tensor int8_sum(const at::Tensor& left, const at::Tensor& right, const CompressedLayer& how);

// A model made to compute as a compressed file says, in memory or from a file.

/// Layers of `model`, whose weights may be any, get the kernels of `form`, and all other tensors are read: what the file keeps as codes is
/// decoded. The model is in eval mode then and has no weights that compute in int8 as floats: it can not be trained. Error(kBadInput) where
/// form and model are not of one another.
void make_compressed(LayerGraph& model, const CompressedForm& form, const ReadTensor& read);

}  // namespace cohort

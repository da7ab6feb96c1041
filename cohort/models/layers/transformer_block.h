#pragma once
// The two modules of the byte Transformers. Parameters have the names that PyTorch implementations usually give them.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "cohort/models/layers/dropout.h"

namespace cohort {

/// {samples, positions} of int64 in [0, vocabulary) -> {samples, positions, width}: byte embedding plus position embedding.
/// Error(kBadInput) for more positions than `context`.
class ByteEmbeddingImpl : public torch::nn::Module {
 public:
  ByteEmbeddingImpl(int64_t vocabulary, int64_t width, int64_t context);
  at::Tensor forward(const at::Tensor& ids);

  torch::nn::Embedding token, position;
};
TORCH_MODULE(ByteEmbedding);

struct BlockOptions {
  int64_t width = 64, heads = 2, ff = 256;
  double dropout = 0.0;
  int64_t first_dropout_id = 0;  ///< The block's two dropout layers have this id and the next.
};

/// Causal self-attention of `heads` heads, {samples, positions, 3 * width} (all queries, then keys, then values, each head by head) ->
/// {samples, positions, width}, in the type of `qkv`. May be called with a subset of a block's heads.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads);

/// {samples, positions, width} -> the same shape: causal self-attention, then a GELU network of `ff` hidden units; both residual, both
/// normalised before. Error(kBadInput) unless heads divides width.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(const BlockOptions& options);
  at::Tensor forward(const at::Tensor& input);
  const BlockOptions& options() const { return options_; }

  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
  Dropout dropout1, dropout2;

 private:
  BlockOptions options_;
};
TORCH_MODULE(TransformerBlock);

}  // namespace cohort

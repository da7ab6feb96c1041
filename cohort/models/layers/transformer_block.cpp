// Pre-norm Transformer block (Vaswani et al. 2017, section 3, with the normalisation moved in front as GPT-2 has it).
//
//   x = x + dropout(out(attention(qkv(norm1(x)))))
//   x = x + dropout(down(GELU(up(norm2(x)))))
//
// Shapes: n samples, t positions, w width, H heads, d = w / H. x {n, t, w}; qkv {n, t, 3w} -> q, k, v {n, H, t, d}; attention {n, H, t, d}
// -> {n, t, w}. Attention is LibTorch's fused causal kernel: position i sees positions up to i. Cost a sample: 12 t w^2 + 2 t^2 w
// multiplications (the kernel halves the second part where it can skip masked blocks).
//
// Half precision on CPUs (measured on an EPYC with AVX-512 BF16, n = 8, t = 128, w = 256, forward and backward): LibTorch's fused kernel
// takes 13 ms in bf16 where it takes 7 ms in fp32, because its backward has no fast bf16 products; written as products and a softmax
// attention takes 3.5 ms. So short bf16 sequences use products and a softmax, at the price of n H t^2 scores in memory; fp16, whose
// products are far slower on CPUs without fp16 arithmetic, computes attention in fp32. fp32, and every type on other devices: the fused
// kernel.

#include "cohort/models/layers/transformer_block.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"

namespace cohort {

ByteEmbeddingImpl::ByteEmbeddingImpl(int64_t vocabulary, int64_t width, int64_t context)
    : torch::nn::Module("ByteEmbedding"), token(vocabulary, width), position(context, width) {
  register_module("token", token);
  register_module("position", position);
}

at::Tensor ByteEmbeddingImpl::forward(const at::Tensor& ids) {
  const at::Tensor& table = position->weight;
  const int64_t num_positions = ids.size(1);
  if (num_positions > table.size(0))
    fail(ErrorCode::kBadInput, "the model was built for a context of ", table.size(0), " bytes, but a sample has ", num_positions);
  return token->forward(ids) + (num_positions == table.size(0) ? table : table.narrow(0, 0, num_positions));
}

static const BlockOptions& checked(const BlockOptions& options) {
  if (options.heads < 1 || options.width % options.heads != 0)
    fail(ErrorCode::kBadInput, "a Transformer's heads must divide its width, but heads is ", options.heads, " and width is ",
         options.width);
  return options;
}

TransformerBlockImpl::TransformerBlockImpl(const BlockOptions& options)
    : torch::nn::Module("TransformerBlock"),
      norm1(torch::nn::LayerNormOptions({checked(options).width})),
      norm2(torch::nn::LayerNormOptions({options.width})),
      qkv(options.width, 3 * options.width),
      out(options.width, options.width),
      up(options.width, options.ff),
      down(options.ff, options.width),
      dropout1(options.dropout, options.first_dropout_id),
      dropout2(options.dropout, options.first_dropout_id + 1),
      options_(options) {
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("qkv", qkv);
  register_module("out", out);
  register_module("up", up);
  register_module("down", down);
  register_module("dropout1", dropout1);
  register_module("dropout2", dropout2);
}

namespace {

/// Longest sequence for which the scores are kept in memory.
constexpr int64_t kMaxExplicitPositions = 512;

/// {n, t, 3w} -> {n, t, w} by LibTorch's fused kernel.
at::Tensor fused_attention(const at::Tensor& qkv, int64_t heads) {
  const int64_t n = qkv.size(0), t = qkv.size(1), w = qkv.size(2) / 3;
  const auto parts = qkv.chunk(3, -1);
  const auto heads_first = [&](const at::Tensor& part) { return part.view({n, t, heads, w / heads}).transpose(1, 2); };
  const at::Tensor attended = at::scaled_dot_product_attention(heads_first(parts[0]), heads_first(parts[1]), heads_first(parts[2]),
                                                               /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return attended.transpose(1, 2).reshape({n, t, w});
}

/// The same as softmax(q k^T / sqrt(d) + mask) v, where the mask is -infinity above the diagonal.
at::Tensor explicit_attention(const at::Tensor& qkv, int64_t heads) {
  const int64_t n = qkv.size(0), t = qkv.size(1), w = qkv.size(2) / 3, d = w / heads;
  const auto parts = qkv.view({n, t, 3, heads, d}).permute({2, 0, 3, 1, 4}).reshape({3, n * heads, t, d}).unbind(0);
  const at::Tensor mask = at::full({t, t}, -std::numeric_limits<double>::infinity(), qkv.options()).triu_(1);
  const at::Tensor scores = at::baddbmm(mask, parts[0], parts[1].transpose(1, 2), /*beta=*/1, 1 / std::sqrt(static_cast<double>(d)));
  return at::bmm(at::softmax(scores, -1), parts[2]).view({n, heads, t, d}).transpose(1, 2).reshape({n, t, w});
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads) {
  const at::ScalarType type = qkv.scalar_type();
  if (!qkv.device().is_cpu() || (type != at::kBFloat16 && type != at::kHalf)) return fused_attention(qkv, heads);
  if (type == at::kBFloat16) return (qkv.size(1) <= kMaxExplicitPositions ? explicit_attention : fused_attention)(qkv, heads);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);  // Autocast would cast back.
  return fused_attention(qkv.to(at::kFloat), heads).to(type);
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& input) {
  const at::Tensor attended = causal_attention(qkv->forward(norm1->forward(input)), options_.heads);
  const at::Tensor x = input + dropout1->forward(out->forward(attended));
  return x + dropout2->forward(down->forward(at::gelu(up->forward(norm2->forward(x)))));
}

}  // namespace cohort

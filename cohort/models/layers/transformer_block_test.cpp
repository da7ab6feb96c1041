#include "cohort/models/layers/transformer_block.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cohort/base/fail.h"

namespace {

using cohort::BlockOptions;
using cohort::ByteEmbedding;
using cohort::TransformerBlock;

TEST_CASE("a block computes what its formula says") {
  torch::manual_seed(1);
  TransformerBlock block(BlockOptions{12, 3, 20});
  const at::Tensor x = at::randn({2, 5, 12});
  const at::Tensor qkv = block->qkv->forward(block->norm1->forward(x));
  const at::Tensor mask = at::full({5, 5}, -std::numeric_limits<float>::infinity()).triu(1);
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < 3; ++h) {
    const auto part = [&](int64_t i) { return qkv.narrow(2, i * 12 + h * 4, 4); };
    heads.push_back(at::softmax(at::matmul(part(0), part(1).transpose(1, 2)) / std::sqrt(4.0) + mask, -1).matmul(part(2)));
  }
  at::Tensor expected = x + block->out->forward(at::cat(heads, -1));
  expected = expected + block->down->forward(at::gelu(block->up->forward(block->norm2->forward(expected))));
  CHECK(at::allclose(block->forward(x), expected, 1e-4, 1e-5));
}

TEST_CASE("no position sees a later one") {
  torch::manual_seed(2);
  TransformerBlock block(BlockOptions{8, 2, 16});
  const at::Tensor x = at::randn({1, 6, 8});
  at::Tensor changed = x.clone();
  changed.narrow(1, 4, 2).add_(1);
  const at::Tensor before = block->forward(x), after = block->forward(changed);
  CHECK(at::equal(before.narrow(1, 0, 4), after.narrow(1, 0, 4)));
  CHECK_FALSE(at::equal(before.narrow(1, 4, 1), after.narrow(1, 4, 1)));
}

/// Output and input gradient of a block under autocast to `type` (fp32: without).
std::vector<at::Tensor> under_autocast(TransformerBlock& block, const at::Tensor& input, at::ScalarType type) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  at::autocast::set_autocast_dtype(at::kCPU, type == at::kFloat ? at::kBFloat16 : type);
  at::autocast::set_autocast_enabled(at::kCPU, type != at::kFloat);
  const at::Tensor y = block->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::clear_cache();
  block->zero_grad();
  (y * at::linspace(-1, 1, y.numel()).view_as(y)).sum().backward();
  return {y.detach().to(at::kFloat), x.grad(), block->qkv->weight.grad()};
}

TEST_CASE("half precision differs from fp32 by its roundings, with scores in memory and without") {
  torch::manual_seed(4);
  TransformerBlock block(BlockOptions{16, 2, 32});
  for (const int64_t positions : {int64_t{1}, int64_t{9}, int64_t{512}, int64_t{513}}) {
    const at::Tensor x = at::randn({2, positions, 16});
    const std::vector<at::Tensor> exact = under_autocast(block, x, at::kFloat);
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const std::vector<at::Tensor> half = under_autocast(block, x, type);
      for (size_t i = 0; i < exact.size(); ++i) {
        INFO(positions, " positions, tensor ", i);
        CHECK((half[i].scalar_type() == at::kFloat));
        const double error = ((half[i] - exact[i]).norm() / exact[i].norm()).item<double>();
        CHECK(error < (type == at::kHalf ? 2e-3 : 2e-2));
        CHECK(error > 0);  // It computed in another type.
      }
    }
  }
}

TEST_CASE("in bf16 no position sees a later one") {
  torch::manual_seed(2);
  TransformerBlock block(BlockOptions{8, 2, 16});
  const at::Tensor x = at::randn({1, 6, 8});
  at::Tensor changed = x.clone();
  changed.narrow(1, 4, 2).add_(1);
  const at::Tensor before = under_autocast(block, x, at::kBFloat16)[0], after = under_autocast(block, changed, at::kBFloat16)[0];
  CHECK(at::equal(before.narrow(1, 0, 4), after.narrow(1, 0, 4)));
  CHECK_FALSE(at::equal(before.narrow(1, 4, 1), after.narrow(1, 4, 1)));
}

TEST_CASE("parameters have the names of PyTorch implementations") {
  CHECK(TransformerBlock(BlockOptions{})->named_parameters().keys() ==
        std::vector<std::string>{"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "qkv.weight", "qkv.bias", "out.weight",
                                 "out.bias", "up.weight", "up.bias", "down.weight", "down.bias"});
}

TEST_CASE("an embedding adds the rows of byte and position") {
  torch::manual_seed(3);
  ByteEmbedding embedding(256, 4, 10);
  const at::Tensor ids = at::randint(256, {3, 7}, at::kLong);
  const at::Tensor out = embedding->forward(ids);
  for (int64_t t = 0; t < 7; ++t) {
    CHECK(at::equal(out[2][t], embedding->token->weight[ids[2][t].item<int64_t>()] + embedding->position->weight[t]));
  }
  CHECK(embedding->forward(at::randint(256, {3, 10}, at::kLong)).sizes() == at::IntArrayRef({3, 10, 4}));
  CHECK_THROWS_WITH_AS(embedding->forward(at::randint(256, {3, 11}, at::kLong)),
                       "the model was built for a context of 10 bytes, but a sample has 11", cohort::Error);
}

TEST_CASE("heads that do not divide the width are refused") {
  CHECK_THROWS_WITH_AS(TransformerBlock(BlockOptions{10, 3, 16}),
                       "a Transformer's heads must divide its width, but heads is 3 and width is 10", cohort::Error);
}

}  // namespace

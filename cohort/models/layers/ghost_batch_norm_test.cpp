#include "cohort/models/layers/ghost_batch_norm.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"

namespace {

using cohort::GhostBatchNorm2d;
using cohort::StepContextScope;

GhostBatchNorm2d make(int64_t ghost_size) {
  torch::manual_seed(11);
  GhostBatchNorm2d norm(3, ghost_size);
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(at::randn({3}));
  norm->bias.copy_(at::randn({3}));
  return norm;
}

at::Tensor pictures(int64_t samples) {
  torch::manual_seed(12);
  return at::randn({samples, 3, 4, 5}) * 2 + 1;
}

bool close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-5, 1e-6); }

TEST_CASE("each group is normalised as torch normalises it alone") {
  for (const int64_t samples : {8, 11, 3, 4, 1}) {  // even groups, a smaller last one, less than one group
    GhostBatchNorm2d norm = make(4);
    const at::Tensor x = pictures(samples).requires_grad_();
    const at::Tensor reference = pictures(samples).requires_grad_();
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < samples; i += 4) {
      parts.push_back(at::batch_norm(reference.narrow(0, i, std::min<int64_t>(4, samples - i)), norm->weight, norm->bias, {}, {}, true, 0.1,
                                     1e-5, false));
    }
    const at::Tensor expected = at::cat(parts), out = norm->forward(x);
    CHECK(close(out, expected));
    const at::Tensor factor = pictures(samples).sin();
    (expected * factor).sum().backward();
    const at::Tensor weight_grad = norm->weight.grad().clone();
    norm->weight.mutable_grad().zero_();
    (out * factor).sum().backward();
    CHECK(close(x.grad(), reference.grad()));
    CHECK(close(norm->weight.grad(), weight_grad));
  }
}

TEST_CASE("one group is torch's own batch norm, running statistics included") {
  GhostBatchNorm2d norm(3, 32);
  torch::nn::BatchNorm2d torch_norm(3);
  for (int i = 0; i < 3; ++i) CHECK(close(norm->forward(pictures(6) * (i + 1)), torch_norm->forward(pictures(6) * (i + 1))));
  CHECK(close(norm->running_mean, torch_norm->running_mean));
  CHECK(close(norm->running_var, torch_norm->running_var));
  norm->eval();
  torch_norm->eval();
  CHECK(close(norm->forward(pictures(5)), torch_norm->forward(pictures(5))));
}

TEST_CASE("running statistics move once, by the groups' average weighted by samples") {
  GhostBatchNorm2d norm = make(4);
  const at::Tensor x = pictures(10);
  at::Tensor mean = at::zeros({3}), variance = at::zeros({3});
  for (const at::Tensor& group : x.split(4)) {
    mean += group.mean({0, 2, 3}) * group.size(0) / 10;
    variance += group.var({0, 2, 3}, /*unbiased=*/true) * group.size(0) / 10;
  }
  norm->forward(x);
  CHECK(close(norm->running_mean, 0.1 * mean));
  CHECK(close(norm->running_var, 0.9 * at::ones({3}) + 0.1 * variance));
}

TEST_CASE("the average over ranks, weighted by samples, is what one process has") {
  const at::Tensor x = pictures(10);
  GhostBatchNorm2d whole = make(4), rank0 = make(4), rank1 = make(4);
  const at::Tensor expected = whole->forward(x);
  const at::Tensor left = rank0->forward(x.narrow(0, 0, 8)), right = rank1->forward(x.narrow(0, 8, 2));
  CHECK(close(at::cat({left, right}), expected));
  CHECK(close(0.8 * rank0->running_mean + 0.2 * rank1->running_mean, whole->running_mean));
  CHECK(close(0.8 * rank0->running_var + 0.2 * rank1->running_var, whole->running_var));
}

TEST_CASE("micro-batches of one step count as one batch") {
  const at::Tensor x = pictures(10);
  GhostBatchNorm2d whole = make(4), parts = make(4);
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor batch = x * (step + 1);
    whole->forward(batch);
    for (const auto& [begin, size] : {std::pair{0, 4}, {4, 4}, {8, 2}}) {
      const StepContextScope scope({0, step, begin});
      parts->forward(batch.narrow(0, begin, size));
    }
  }
  CHECK(close(whole->running_mean, parts->running_mean));
  CHECK(close(whole->running_var, parts->running_var));
}

TEST_CASE("statistics that were written elsewhere inside a step are the new start") {
  GhostBatchNorm2d norm = make(4), fresh = make(4);
  const StepContextScope scope({0, 0, 0});
  norm->forward(pictures(4) * 3);
  {
    const torch::NoGradGuard no_grad;
    norm->running_mean.zero_();
    norm->running_var.fill_(1);
  }
  norm->forward(pictures(4));
  fresh->forward(pictures(4));
  CHECK(close(norm->running_mean, fresh->running_mean));
  CHECK(close(norm->running_var, fresh->running_var));
}

TEST_CASE("a group with one value a channel leaves finite statistics") {
  GhostBatchNorm2d norm = make(4);
  const at::Tensor out = norm->forward(pictures(5).slice(2, 0, 1).slice(3, 0, 1));
  CHECK(out.isfinite().all().item<bool>());
  CHECK(close(out[4].flatten(), norm->bias));  // Only the bias remains.
  CHECK(norm->running_var.isfinite().all().item<bool>());
}

TEST_CASE("no samples: nothing happens") {
  GhostBatchNorm2d norm = make(4);
  CHECK(norm->forward(at::zeros({0, 3, 4, 4})).numel() == 0);
  CHECK(at::equal(norm->running_var, at::ones({3})));
}

TEST_CASE("sizes below one are refused") {
  CHECK_THROWS_AS(GhostBatchNorm2d(0, 32), cohort::Error);
  CHECK_THROWS_AS(GhostBatchNorm2d(3, 0), cohort::Error);
}

}  // namespace

#include "cohort/models/layers/dropout.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cmath>
#include <set>
#include <string>

#include "cohort/base/fail.h"

namespace {

using cohort::Dropout;
using cohort::StepContext;
using cohort::StepContextScope;

at::Tensor run(Dropout& dropout, const at::Tensor& input, const StepContext& context) {
  const StepContextScope scope(context);
  return dropout->forward(input);
}

TEST_CASE("contexts nest and belong to the thread") {
  CHECK(cohort::current_step_context() == nullptr);
  {
    const StepContextScope outer({1, 2, 3});
    CHECK(cohort::current_step_context()->step == 2);
    {
      const StepContextScope inner({1, 5, 0});
      CHECK(cohort::current_step_context()->step == 5);
    }
    CHECK(cohort::current_step_context()->first_sample == 3);
  }
  CHECK(cohort::current_step_context() == nullptr);
}

TEST_CASE("a mask does not depend on how the batch is divided") {
  for (const int64_t elements : {1, 2, 7, 64}) {  // odd: a draw's second half is unused
    Dropout dropout(0.4, 3);
    const at::Tensor x = at::ones({13, elements});
    const at::Tensor whole = run(dropout, x, {9, 5, 100});
    for (const int64_t cut : {1, 6, 12}) {
      const at::Tensor left = run(dropout, x.narrow(0, 0, cut), {9, 5, 100});
      const at::Tensor right = run(dropout, x.narrow(0, cut, 13 - cut), {9, 5, 100 + cut});
      CHECK(at::equal(at::cat({left, right}), whole));
    }
  }
}

TEST_CASE("every key of the mask matters") {
  const at::Tensor x = at::ones({4, 257});
  std::set<std::string> masks;
  const auto note = [&](uint64_t seed, int64_t layer, int64_t step, int64_t first) {
    Dropout dropout(0.5, layer);
    const at::Tensor mask = run(dropout, x, {seed, step, first}).contiguous();
    masks.emplace(reinterpret_cast<const char*>(mask.const_data_ptr<float>()), mask.nbytes());
    for (int64_t i = 1; i < 4; ++i) CHECK_FALSE(at::equal(mask[0], mask[i]));
  };
  note(0, 0, 0, 0);
  note(1, 0, 0, 0);
  note(0, 1, 0, 0);
  note(0, 0, 1, 0);
  note(0, 0, 0, 1);
  CHECK(masks.size() == 5);
}

TEST_CASE("as many elements are dropped as asked for, the rest is scaled") {
  for (const double p : {0.1, 0.5, 0.9}) {
    Dropout dropout(p, 0);
    const at::Tensor out = run(dropout, at::ones({64, 1000}), {1, 2, 0});
    const double dropped = (out == 0).sum().item<double>() / 64000;
    CHECK(std::abs(dropped - p) < 5 * std::sqrt(p * (1 - p) / 64000));  // five standard errors
    CHECK(at::equal(out.max(), at::full({}, static_cast<float>(1 / (1 - p)))));
    // Neighbours share a 64-bit draw: they must be independent all the same.
    const at::Tensor kept = (out != 0).to(at::kDouble).view({-1, 2});
    const double both = (kept.select(1, 0) * kept.select(1, 1)).mean().item<double>();
    CHECK(std::abs(both - (1 - p) * (1 - p)) < 0.015);
  }
}

TEST_CASE("the gradient uses the same mask, and other types keep theirs") {
  Dropout dropout(0.3, 7);
  const at::Tensor x = at::ones({5, 6}).requires_grad_();
  const at::Tensor out = run(dropout, x, {1, 1, 0});
  out.sum().backward();
  CHECK(at::equal(x.grad(), out.detach()));
  CHECK((run(dropout, at::ones({5, 6}, at::kBFloat16), {1, 1, 0}).scalar_type() == at::kBFloat16));
  CHECK(run(dropout, at::ones({0, 6}), {1, 1, 0}).numel() == 0);
}

TEST_CASE("identity in evaluation and for probability zero; torch's generator outside of a step") {
  const at::Tensor x = at::ones({8, 8});
  Dropout none(0.0, 0), half(0.5, 0);
  CHECK(run(none, x, {}).is_same(x));
  torch::manual_seed(3);
  const at::Tensor first = half->forward(x);
  torch::manual_seed(3);
  CHECK(at::equal(half->forward(x), first));
  CHECK_FALSE(at::equal(half->forward(x), first));
  half->eval();
  CHECK(run(half, x, {}).is_same(x));
}

TEST_CASE("a probability outside of [0, 1) is refused") {
  for (const double p : {-0.1, 1.0, 2.0, std::nan("")}) CHECK_THROWS_AS(cohort::DropoutImpl(p, 0), cohort::Error);
}

}  // namespace

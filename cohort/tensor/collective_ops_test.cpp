#include "cohort/tensor/collective_ops.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

using Shape = std::vector<int64_t>;

/// Numbers without a pattern that `seed` alone decides (the generator of torch is shared by thread ranks).
at::Tensor numbers(const Shape& shape, int seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor index = at::arange(count, at::kDouble).add_(1 + 1000.0 * seed);
  return (index * 12.9898).sin_().mul_(43758.5453).frac_().reshape(shape);
}

void expect(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kFailed, what);
}

/// Block `rank` of `num_ranks` along `dim`.
at::Tensor piece(const at::Tensor& whole, int64_t dim, int rank, int num_ranks) { return whole.chunk(num_ranks, dim)[rank]; }

struct Result {
  at::Tensor output, gradient;
};

/// `operation` of `input` and the gradient of sum(weights * output) with regard to it.
Result differentiate(const std::function<at::Tensor(const at::Tensor&)>& operation, const at::Tensor& input, const at::Tensor& weights) {
  const at::Tensor leaf = input.detach().clone().requires_grad_(true);
  const at::Tensor output = operation(leaf);
  output.backward(weights);
  return {output.detach(), leaf.grad()};
}

/// Each operation's result and gradient by their definitions, for {pieces of} every rank's numbers.
void check_all(Group& group, const Shape& whole, int64_t dim) {
  const int num_ranks = group.size(), rank = group.rank();
  Shape part = whole;
  part[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(whole.size()) : dim)] /= num_ranks;
  std::vector<at::Tensor> wholes, parts, whole_weights, part_weights;
  for (int each = 0; each < num_ranks; ++each) {
    wholes.push_back(numbers(whole, each));
    parts.push_back(numbers(part, 10 + each));
    whole_weights.push_back(numbers(whole, 20 + each));
    part_weights.push_back(numbers(part, 30 + each));
  }
  const auto sum_of = [](const std::vector<at::Tensor>& tensors) {
    at::Tensor total = tensors[0].clone();
    for (size_t i = 1; i < tensors.size(); ++i) total.add_(tensors[i]);
    return total;
  };
  const at::Tensor same = numbers(whole, 50), same_weights = numbers(whole, 51);
  const auto check = [&](const char* name, const Result& result, const at::Tensor& output, const at::Tensor& gradient) {
    expect(at::equal(result.output, output), concat("forward of ", name, " dim ", dim, " on rank ", rank, " of ", num_ranks));
    expect(at::equal(result.gradient, gradient), concat("gradient of ", name, " dim ", dim, " on rank ", rank, " of ", num_ranks));
    expect(result.output.is_contiguous(), concat(name, " is contiguous"));
  };
  check("copy_to_ranks", differentiate([&](const at::Tensor& x) { return copy_to_ranks(x, group); }, same, whole_weights[rank]), same,
        sum_of(whole_weights));
  check("sum_over_ranks", differentiate([&](const at::Tensor& x) { return sum_over_ranks(x, group); }, wholes[rank], same_weights),
        sum_of(wholes), same_weights);
  check("gather_from_ranks",
        differentiate([&](const at::Tensor& x) { return gather_from_ranks(x, dim, group); }, parts[rank], same_weights),
        at::cat(parts, dim), piece(same_weights, dim, rank, num_ranks));
  check("slice_for_rank", differentiate([&](const at::Tensor& x) { return slice_for_rank(x, dim, group); }, same, part_weights[rank]),
        piece(same, dim, rank, num_ranks), at::cat(part_weights, dim));
  check("gather_with_sum",
        differentiate([&](const at::Tensor& x) { return gather_with_sum(x, dim, group); }, parts[rank], whole_weights[rank]),
        at::cat(parts, dim), piece(sum_of(whole_weights), dim, rank, num_ranks));
  check("sum_and_slice", differentiate([&](const at::Tensor& x) { return sum_and_slice(x, dim, group); }, wholes[rank], part_weights[rank]),
        piece(sum_of(wholes), dim, rank, num_ranks), at::cat(part_weights, dim));
}

TEST_CASE("each exchange and its gradient are what their definitions say, in rank order and bitwise") {
  for (const int num_ranks : {2, 3, 4}) {
    run_thread_ranks(num_ranks, [&](Group& group) {
      check_all(group, {num_ranks * 5}, 0);
      check_all(group, {num_ranks, 7}, 0);
      check_all(group, {3, num_ranks * 3, 5}, 1);
      check_all(group, {3, 5, num_ranks * 11}, -1);
      check_all(group, {3, num_ranks * 2, 1, 3}, -3);
      check_all(group, {0, num_ranks * 2}, 1);  // no samples
    });
  }
}

TEST_CASE("half precision: sums are rounded once, and every rank has the same bits") {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    run_thread_ranks(3, [&](Group& group) {
      std::vector<at::Tensor> all;
      for (int each = 0; each < 3; ++each) all.push_back(numbers({6, 7}, each).to(type));
      const at::ScalarType wide = at::kFloat;
      const at::Tensor total = (all[0].to(wide) + all[1].to(wide) + all[2].to(wide)).to(type);
      const auto result =
          differentiate([&](const at::Tensor& x) { return sum_over_ranks(x, group); }, all[group.rank()], numbers({6, 7}, 4).to(type));
      expect(result.output.scalar_type() == type && at::equal(result.output, total), concat("the sum of ", type));
      const auto pieces =
          differentiate([&](const at::Tensor& x) { return sum_and_slice(x, 0, group); }, all[group.rank()], numbers({2, 7}, 4).to(type));
      expect(at::equal(pieces.output, piece(total, 0, group.rank(), 3)), concat("the pieces of the sum of ", type));
      expect(pieces.gradient.scalar_type() == type, "the gradient's type");
    });
  }
}

TEST_CASE("input that is not contiguous, and an input without gradient") {
  run_thread_ranks(2, [](Group& group) {
    const at::Tensor x = numbers({4, 6}, group.rank()).t();  // {6, 4}, strides {1, 6}
    const at::Tensor expected = numbers({4, 6}, 0).t() + numbers({4, 6}, 1).t();
    expect(at::equal(sum_over_ranks(x, group), expected), "sum");
    expect(at::equal(sum_and_slice(x, 1, group), piece(expected, 1, group.rank(), 2)), "sum and slice");
    expect(at::equal(gather_from_ranks(x, 1, group), at::cat({numbers({4, 6}, 0).t(), numbers({4, 6}, 1).t()}, 1)), "gather");
    expect(!sum_over_ranks(x, group).requires_grad(), "no gradient where none is asked for");
    expect(at::equal(x, numbers({4, 6}, group.rank()).t()), "the input is left alone");
  });
}

TEST_CASE("second derivatives pass through the exchanges") {
  // f(x) = sum over ranks r of w_r x^3 on each rank's copy: f'' = 6 x sum w_r.
  run_thread_ranks(3, [](Group& group) {
    const at::Tensor x = numbers({5}, 3).requires_grad_(true);
    const at::Tensor weight = numbers({5}, group.rank());
    const at::Tensor total = numbers({5}, 0) + numbers({5}, 1) + numbers({5}, 2);
    const at::Tensor y = sum_over_ranks(copy_to_ranks(x, group).pow(3) * weight, group).sum();
    const at::Tensor first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    expect(at::allclose(first, 3 * x * x * total), "first derivative");
    const at::Tensor second = torch::autograd::grad({first.sum()}, {x})[0];
    expect(at::allclose(second, 6 * x * total), "second derivative");
  });
}

TEST_CASE("a size that does not divide is refused before anything is exchanged, and one rank does nothing") {
  run_thread_ranks(2, [](Group& group) {
    const at::Tensor x = numbers({3, 4}, 0);
    for (const auto& operation : {slice_for_rank, sum_and_slice}) {
      std::string text;
      try {
        operation(x, 0, group);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kBadInput) text = error.what();
      }
      expect(text.find("[3, 4] does not divide by 2 ranks") != std::string::npos, "the message: " + text);
    }
  });
  const Group alone;
  const at::Tensor x = numbers({3, 4}, 0).requires_grad_(true);
  CHECK(copy_to_ranks(x, alone).is_same(x));
  CHECK(sum_over_ranks(x, alone).is_same(x));
  CHECK(gather_from_ranks(x, 1, alone).is_same(x));
  CHECK(slice_for_rank(x, 1, alone).is_same(x));
  CHECK(gather_with_sum(x, 1, alone).is_same(x));
  CHECK(sum_and_slice(x, 1, alone).is_same(x));
}

}  // namespace
}  // namespace cohort

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/tensor/shard_graph.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kFailed, what);
}

/// {rows, classes} of numbers up to `size` in magnitude.
at::Tensor logits_of(int64_t rows, int64_t classes, double size, at::ScalarType type) {
  return (at::arange(rows * classes, at::kDouble).add_(1.0) * 12.9898).sin_().mul_(size).reshape({rows, classes}).to(type);
}

at::Tensor targets_of(int64_t rows, int64_t classes) { return (at::arange(rows, at::kLong) * 7 + 1).remainder(classes); }

struct Case {
  int64_t rows, classes_a_rank;
  double size;
  at::ScalarType type;
  bool sum;
  double tolerance;
};

void check(const Case& test, Group& group) {
  const int64_t classes = test.classes_a_rank * group.size();
  const at::Tensor whole = logits_of(test.rows, classes, test.size, test.type).requires_grad_(true);
  const at::Tensor target = targets_of(test.rows, classes);
  // In float for half precision, as the divided loss is.
  const at::Tensor wide = test.type == at::kDouble ? whole : whole.to(at::kFloat);
  const at::Tensor expected = at::cross_entropy_loss(wide, target, {}, test.sum ? at::Reduction::Sum : at::Reduction::Mean);
  (3 * expected).backward();
  const at::Tensor mine = whole.detach().chunk(group.size(), 1)[group.rank()].clone().requires_grad_(true);
  const at::Tensor loss = divided_cross_entropy(mine, target, group, test.sum);
  (3 * loss).backward();
  const std::string where =
      concat(test.rows, " rows of ", classes, " classes of ", test.type, " up to ", test.size, " on rank ", group.rank());
  expect(at::allclose(loss, expected, test.tolerance, test.tolerance), where + ": the loss");
  expect(mine.grad().scalar_type() == test.type, where + ": the gradient's type");
  expect(at::allclose(mine.grad(), whole.grad().chunk(group.size(), 1)[group.rank()], test.tolerance, test.tolerance),
         where + ": the gradient");
}

TEST_CASE("divided cross-entropy is the whole one: logits that would overflow, one class a rank, sums, half precision") {
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_thread_ranks(num_ranks, [](Group& group) {
      check({7, 5, 3.0, at::kDouble, false, 1e-12}, group);
      check({7, 5, 3.0, at::kDouble, true, 1e-12}, group);
      check({1, 1, 1.0, at::kDouble, false, 1e-12}, group);
      check({5, 3, 2e4, at::kDouble, false, 1e-10}, group);  // exp(2e4) is infinite
      check({33, 11, 300.0, at::kFloat, false, 1e-5}, group);
      check({9, 4, 2.0, at::kBFloat16, true, 1e-2}, group);
    });
  }
}

TEST_CASE("rows of several dimensions; the loss has the same bits on all ranks; backward may run twice") {
  run_thread_ranks(3, [](Group& group) {
    const at::Tensor whole = logits_of(10, 12, 2.0, at::kFloat);
    const at::Tensor mine = whole.chunk(3, 1)[group.rank()].reshape({2, 5, 4}).requires_grad_(true);
    const at::Tensor target = targets_of(10, 12).view({2, 5});
    const at::Tensor loss = divided_cross_entropy(mine, target, group);
    expect(at::allclose(loss, at::cross_entropy_loss(whole, target.view({-1}))), "the loss");
    at::Tensor losses = at::empty({3}, at::kFloat);
    group.all_gather(losses, loss.detach().view({1}), "losses");
    expect(losses[0].equal(losses[1]) && losses[0].equal(losses[2]), "the loss's bits");
    const at::Tensor first = torch::autograd::grad({loss}, {mine}, {}, /*retain_graph=*/true)[0];
    const at::Tensor second = torch::autograd::grad({loss}, {mine})[0];
    expect(first.sizes() == mine.sizes() && first.equal(second), "the gradient");
  });
}

}  // namespace
}  // namespace cohort

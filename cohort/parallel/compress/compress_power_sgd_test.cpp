#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "tests/support/compressor_inputs.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

constexpr int64_t kRows = 30, kColumns = 50, kCount = kRows * kColumns;

CompressedBuffer one_matrix() { return {"matrix", {{0, {kRows, kColumns}}}}; }

/// A random matrix of rank `rank`.
at::Tensor low_rank(uint64_t seed, int64_t rank) {
  return at::mm(test_gradient(seed, 0, 0, kRows * rank).view({kRows, rank}),
                test_gradient(seed, 1, 0, rank * kColumns).view({rank, kColumns}));
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return at::norm(got.view({-1}) - expected.view({-1})).item<double>() / at::norm(expected).item<double>();
}

TEST_CASE("powersgd: the sum of gradients of low rank arrives at once, whatever its size") {
  for (const double size : {1.0, 1e-12, 1e12})
    run_thread_ranks(2, [&](Group& group) {
      auto compressor = make_compressor("powersgd:4", one_matrix(), kCount, 1);
      // Rank 2 on each of two ranks: 4 in all.
      at::Tensor flat = low_rank(static_cast<uint64_t>(group.rank()), 2).mul(size).reshape({-1});
      compressor->all_reduce_sum(group, flat, "test");
      const double error = relative_error(flat, (low_rank(0, 2) + low_rank(1, 2)) * size);
      if (error > 1e-4) FAIL(concat("size ", size, ": off by ", error));
    });
}

TEST_CASE("powersgd: a full-rank gradient is projected; repeated steps approach its best approximation") {
  Group alone;
  const at::Tensor matrix = test_gradient(5, 0, 0, kCount);
  const auto [u, s, v] = at::svd(matrix.view({kRows, kColumns}));
  const double best = at::norm(s.narrow(0, 3, kRows - 3)).item<double>(), whole = at::norm(s).item<double>();
  auto compressor = make_compressor("powersgd:3", one_matrix(), kCount, 1);
  double left = 0;
  for (int step = 0; step < 60; ++step) {
    compressor->state()[0].second.zero_();  // Without feedback this is the power method on one matrix.
    at::Tensor flat = matrix.clone();
    compressor->all_reduce_sum(alone, flat, "test");
    left = at::norm(flat - matrix).item<double>();
    CHECK(left <= whole * 1.000001);
    CHECK(left >= best * 0.999999);
  }
  CHECK(left <= best * 1.01);
}

TEST_CASE("powersgd: vectors, small matrices and gaps arrive as they are") {
  const int64_t count = 2100;
  const CompressedBuffer buffer{"mixed", {{0, {40, 40}}, {1600, {100}}, {1710, {2, 3}}, {1800, {1, 200}}}};
  run_thread_ranks(3, [&](Group& group) {
    auto compressor = make_compressor("powersgd:2", buffer, count, 1);
    at::Tensor flat = test_gradient(1, group.rank(), 0, count), exact = flat.clone();
    compressor->all_reduce_sum(group, flat, "test");
    group.all_reduce_sum(exact, "exact");
    if (!at::equal(flat.narrow(0, 1600, 500), exact.narrow(0, 1600, 500))) FAIL("what is not compressed differs");
    if (at::equal(flat, exact)) FAIL("nothing was compressed");
  });
}

TEST_CASE("powersgd: a gradient of zeros, and one of lower rank than R, do not stop it") {
  Group alone;
  auto compressor = make_compressor("powersgd:3", one_matrix(), kCount, 1);
  at::Tensor flat = at::zeros({kCount});
  compressor->all_reduce_sum(alone, flat, "test");
  CHECK(at::equal(flat, at::zeros({kCount})));
  flat = low_rank(1, 1).reshape({-1});
  compressor->all_reduce_sum(alone, flat, "test");
  CHECK(relative_error(flat, low_rank(1, 1)) < 1e-4);
  flat = low_rank(2, 3).reshape({-1});  // The columns that were of no use began anew.
  compressor->all_reduce_sum(alone, flat, "test");
  CHECK(relative_error(flat, low_rank(2, 3)) < 1e-3);
}

TEST_CASE("powersgd: parts that overlap or leave the buffer are refused") {
  for (const CompressedBuffer& bad : {CompressedBuffer{"bad", {{0, {10, 10}}, {99, {10}}}}, CompressedBuffer{"bad", {{0, {101, 10}}}},
                                      CompressedBuffer{"bad", {{-1, {10, 10}}}}})
    CHECK_THROWS_WITH_AS(make_compressor("powersgd:2", bad, 1000, 1), doctest::Contains("must not overlap"), Error);
}

}  // namespace
}  // namespace cohort

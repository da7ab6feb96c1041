#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "tests/support/compressor_inputs.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

/// c(x) of a fresh compressor.
at::Tensor coded(const at::Tensor& values) {
  Group alone;
  at::Tensor flat = values.clone();
  make_compressor("int8", {}, flat.numel(), 1)->all_reduce_sum(alone, flat, "test");
  return flat;
}

TEST_CASE("int8: an element is off by at most half a step of its own block") {
  for (const int64_t count : {1, 255, 256, 257, 513, 4000}) {
    at::Tensor values = test_gradient(1, 0, 0, count);
    if (count > 256) values.narrow(0, 0, 256) *= 1e6;  // One block must not spoil the next.
    const at::Tensor result = coded(values);
    for (int64_t begin = 0; begin < count; begin += 256) {
      const int64_t length = std::min<int64_t>(256, count - begin);
      const at::Tensor block = values.narrow(0, begin, length);
      const double step = at::max(at::abs(block)).item<double>() / 127;
      CHECK(at::max(at::abs(result.narrow(0, begin, length) - block)).item<double>() <= step / 2 * 1.0002);
      CHECK(at::max(at::abs(result.narrow(0, begin, length))).item<double>() <= 127 * step * 1.0002);
    }
  }
}

TEST_CASE("int8: known codes") {
  // 127 steps of 0.5: the scale is exact, ties go to the even code.
  at::Tensor values = at::zeros({300}), expected = at::zeros({300});
  const float in[] = {63.5f, -63.5f, 0.24f, 0.25f, 0.75f, -0.26f, 10.1f}, out[] = {63.5f, -63.5f, 0, 0, 1.0f, -0.5f, 10.0f};
  for (int i = 0; i < 7; ++i) values[i] = in[i], expected[i] = out[i];
  CHECK(at::equal(coded(values), expected));
  CHECK(at::equal(coded(at::zeros({600})), at::zeros({600})));
  CHECK(at::equal(coded(at::full({600}, 1e-38f)), at::zeros({600})));  // Below what is sent; the residual has it.
  CHECK(at::isfinite(coded(at::full({600}, 3.4e38f))).all().item<bool>());
}

TEST_CASE("int8: sums over ranks are within the steps of their addends and of the sum") {
  for (const int num_ranks : {2, 4})
    for (const int64_t count : {3000, 60000})  // Gathered and, with 4 ranks, in slices.
      run_thread_ranks(num_ranks, [&](Group& group) {
        auto compressor = make_compressor("int8", {}, count, 1);
        at::Tensor flat = test_gradient(1, group.rank(), 0, count), exact = at::zeros({count}, at::kDouble);
        compressor->all_reduce_sum(group, flat, "test");
        double largest = 0;
        for (int rank = 0; rank < num_ranks; ++rank) {
          const at::Tensor addend = test_gradient(1, rank, 0, count);
          exact += addend;
          largest += at::max(at::abs(addend)).item<double>();
        }
        const double error = at::max(at::abs(flat - exact)).item<double>();
        if (error > 2 * largest / 254 * 1.01) FAIL(concat("off by ", error, ", largest ", largest));
      });
}

}  // namespace
}  // namespace cohort

#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cohort/base/fail.h"
#include "tests/support/compressor_inputs.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

/// The k elements of largest magnitude, the first of equal ones, by a full sort.
at::Tensor largest_by_sort(const at::Tensor& values, int64_t k) {
  const float* const x = values.data_ptr<float>();
  std::vector<int64_t> order(static_cast<size_t>(values.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  at::Tensor out = at::zeros({values.numel()});
  for (int64_t i = 0; i < k; ++i) out.data_ptr<float>()[order[static_cast<size_t>(i)]] = x[order[static_cast<size_t>(i)]];
  return out;
}

void check_selection(const at::Tensor& values, const std::string& fraction, int64_t k) {
  Group alone;
  auto compressor = make_compressor("topk:" + fraction, {}, values.numel(), 1);
  at::Tensor flat = values.clone();
  compressor->all_reduce_sum(alone, flat, "test");
  const at::Tensor expected = largest_by_sort(values, k);
  CHECK(at::equal(flat, expected));
  CHECK(at::equal(compressor->state()[0].second, values - expected));
  CHECK(compressor->cost(2).sent_bytes == 8 * k);
}

TEST_CASE("top-k: exactly the k largest, ties by position, and the rest is kept") {
  check_selection(test_gradient(1, 0, 0, 1000), "0.01", 10);
  check_selection(test_gradient(1, 0, 0, 50000), "0.01", 500);  // With a sampled threshold.
  check_selection(test_gradient(1, 0, 0, 50000), "0.5", 25000);
  check_selection(test_gradient(1, 0, 0, 50000), "1", 50000);
  check_selection(test_gradient(1, 0, 0, 50000), "0.000001", 1);
  check_selection(at::ones({50000}), "0.1", 5000);  // All equal: the first 5000.
  check_selection(at::zeros({50000}), "0.1", 5000);
  check_selection(test_gradient(1, 0, 0, 1), "0.1", 1);
}

TEST_CASE("top-k: right also where the sample sees nothing of what is large, or only that") {
  at::Tensor few = at::zeros({100000});
  few.narrow(0, 40000, 900).copy_(test_gradient(1, 0, 0, 900));  // Fewer large ones than k.
  check_selection(few, "0.01", 1000);
  at::Tensor steep = at::zeros({100000});
  for (int64_t i = 0; i < 100000; ++i) steep.data_ptr<float>()[i] = 1.0f / static_cast<float>(1 + (i * 7919) % 100000);
  check_selection(steep, "0.0005", 50);
}

TEST_CASE("top-k: what several ranks send of one element is added") {
  run_thread_ranks(3, [](Group& group) {
    auto compressor = make_compressor("topk:0.2", {}, 10, 1);
    at::Tensor flat = at::full({10}, 0.1f);
    flat[4] = 1.0f + static_cast<float>(group.rank());
    flat[group.rank()] = 5.0f;
    compressor->all_reduce_sum(group, flat, "test");
    at::Tensor expected = at::zeros({10});
    expected.narrow(0, 0, 3).fill_(5);
    expected[4] = 6.0f;
    if (!at::equal(flat, expected)) FAIL(flat);
  });
}

}  // namespace
}  // namespace cohort

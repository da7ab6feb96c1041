#include "cohort/train/quantise_aware/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace cohort {
namespace {

at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::TensorOptions(at::kFloat)); }

/// The plain statement of what a row (or group) is rounded to.
std::vector<float> plainly_rounded(const float* row, int64_t count, int64_t largest) {
  float top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, std::abs(row[i]));
  const float scale = top > 0 ? top / static_cast<float>(largest) : 1;
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(scale * std::nearbyint(row[i] / scale));
  return out;
}

TEST_CASE("rounding: weights are the nearest of 2 L + 1 numbers of their row or group") {
  at::manual_seed(3);
  const at::Tensor matrix = numbers({5, 70}), kernel = numbers({4, 3, 3, 3});
  matrix[2].zero_();
  for (const at::Tensor& weight : {matrix, kernel})
    for (const QuantiseAware how : {QuantiseAware{8, 0}, QuantiseAware{4, 0}, QuantiseAware{4, 8}, QuantiseAware{4, 64}}) {
      const int64_t rows = weight.size(0), columns = weight.numel() / rows, largest = how.bits == 8 ? 127 : 7;
      const int64_t width = how.group == 0 ? columns : how.group;
      const at::Tensor rounded = rounded_weight(weight, how);
      REQUIRE(rounded.sizes() == weight.sizes());
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t first = 0; first < columns; first += width) {
          const int64_t count = std::min(width, columns - first);
          const float* const exact = weight.const_data_ptr<float>() + row * columns + first;
          const float* const found = rounded.const_data_ptr<float>() + row * columns + first;
          const std::vector<float> wanted = plainly_rounded(exact, count, largest);
          std::set<float> levels(found, found + count);
          CHECK(static_cast<int64_t>(levels.size()) <= 2 * largest + 1);
          float top = 0;
          for (int64_t i = 0; i < count; ++i) top = std::max(top, std::abs(exact[i]));
          // A number halfway between two may be rounded to either.
          for (int64_t i = 0; i < count; ++i)
            CHECK((std::abs(found[i] - wanted[static_cast<size_t>(i)]) <= 1e-6F * top ||
                   std::abs(found[i] - exact[i]) <= 0.5001F * top / static_cast<float>(largest)));
        }
    }
}

TEST_CASE("rounding: a sample is rounded alone, zero stays zero, and no number moves by more than half a step") {
  at::manual_seed(4);
  const at::Tensor samples = at::cat({numbers({3, 2, 4, 4}), numbers({2, 2, 4, 4}).relu(), at::zeros({1, 2, 4, 4}, at::kFloat)});
  samples[0][0][0][0] = 0;
  const at::Tensor rounded = rounded_samples(samples);
  for (int64_t i = 0; i < samples.size(0); ++i) {
    CHECK(at::equal(rounded_samples(samples.narrow(0, i, 1)), rounded.narrow(0, i, 1)));
    const double step = (samples[i].max().clamp_min(0) - samples[i].min().clamp_max(0)).item<double>() / 127;
    // The zero point is rounded too: at one end half a step more.
    CHECK((rounded[i] - samples[i]).abs().max().item<double>() <= 1.0001 * step);
    CHECK((rounded[i] - samples[i]).abs().median().item<double>() <= 0.5001 * step);
  }
  CHECK(rounded[0][0][0][0].item<float>() == 0);
  CHECK(!at::equal(rounded.narrow(0, 0, 5), samples.narrow(0, 0, 5)));
  CHECK(at::equal(rounded[5], samples[5]));
  CHECK(rounded_samples(at::zeros({0, 3}, at::kFloat)).numel() == 0);
}

TEST_CASE("rounding: the gradient is that of the rounded numbers, and numbers that are not finite stay visible") {
  at::manual_seed(5);
  const at::Tensor weight = numbers({3, 10}).requires_grad_(true), samples = numbers({3, 10}).requires_grad_(true),
                   factor = numbers({3, 10});
  (rounded_weight(weight, {4, 4}) * factor).sum().backward();
  CHECK(at::equal(weight.grad(), factor));
  (rounded_samples(samples) * factor).sum().backward();
  CHECK((samples.grad() == factor).sum().item<int64_t>() >= 27);  // One number of a sample may be cut off.
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(!rounded_samples(at::full({2, 3}, bad, at::kFloat)).isfinite().all().item<bool>());
    CHECK(!rounded_weight(at::full({2, 3}, bad, at::kFloat), {8, 0}).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace cohort

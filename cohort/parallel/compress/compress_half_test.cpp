#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/vector_loops.h"
#include "tests/support/compressor_inputs.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

/// Compares the conversions with LibTorch's: all halves, and floats of every exponent.
template <typename Bits, typename Reference>
int64_t count_differences() {
  int64_t differences = 0;
  for (uint32_t half = 0; half < 65536; ++half) {
    const float expected = static_cast<float>(Reference(static_cast<uint16_t>(half), Reference::from_bits())), got = Bits::to_float(half);
    differences += std::isnan(expected) ? !std::isnan(got) : bits_of(got) != bits_of(expected);
  }
  for (uint64_t i = 0; i < 300000; ++i) {
    // All exponents and signs; half of the mantissas are ties or next to one.
    const uint32_t random = static_cast<uint32_t>(random_bits(1, i)), ties = (random & 0xffffe000) | 0x1000;
    const uint32_t bits = i % 2 ? random : ties + static_cast<uint32_t>(i / 2 % 3) - 1;
    const float value = float_of(bits);
    differences += Bits::from_float(value) != Reference(value).x;
  }
  return differences;
}

TEST_CASE("half bits are LibTorch's") {
  CHECK(count_differences<Fp16Bits, c10::Half>() == 0);
  CHECK(count_differences<Bf16Bits, c10::BFloat16>() == 0);
}

TEST_CASE("half: the first sum is within the rounding of its addends") {
  for (const int num_ranks : {2, 3, 4})
    for (const int64_t count : {1000, 30011})  // Gathered and in slices.
      run_thread_ranks(num_ranks, [&](Group& group) {
        const double divisor = num_ranks == 3 ? 4 : num_ranks;
        for (const bool is_fp16 : {true, false}) {
          const auto bound = [&](double x) { return is_fp16 ? std::max(std::abs(x) / 2048, divisor * 0x1p-25) : std::abs(x) / 256; };
          auto compressor = make_compressor(is_fp16 ? "fp16" : "bf16", {}, count, 1);
          at::Tensor flat = test_gradient(1, group.rank(), 0, count);
          compressor->all_reduce_sum(group, flat, "test");
          std::vector<at::Tensor> addends;
          for (int rank = 0; rank < num_ranks; ++rank) addends.push_back(test_gradient(1, rank, 0, count));
          for (int64_t i = 0; i < count; ++i) {
            double exact = 0, allowed = 1e-12;
            for (const at::Tensor& addend : addends) exact += addend.data_ptr<float>()[i], allowed += bound(addend.data_ptr<float>()[i]);
            allowed = allowed * 1.01 + bound(std::abs(exact) + allowed);
            if (std::abs(flat.data_ptr<float>()[i] - exact) > allowed)
              FAIL(concat("element ", i, ": ", flat.data_ptr<float>()[i], " for ", exact));
          }
        }
      });
}

TEST_CASE("fp16: what is too large for it comes in several steps") {
  run_thread_ranks(3, [](Group& group) {
    auto compressor = make_compressor("fp16", {}, 40, 1);
    at::Tensor flat = at::full({40}, 1e6f);
    double applied = 0;
    for (int step = 0; step < 12; ++step) {
      compressor->all_reduce_sum(group, flat, "test");
      const double sum = flat[7].item<double>();
      if (!std::isfinite(sum) || sum > 3 * 4 * 65504.0) FAIL(sum);
      applied += sum;
      flat.zero_();
    }
    if (std::abs(applied - 3e6) > 1) FAIL(applied);
  });
}

TEST_CASE("fp16: the division keeps the sum of large gradients finite in its second code") {
  run_thread_ranks(4, [](Group& group) {
    constexpr int64_t kCount = 40000;  // In slices.
    auto compressor = make_compressor("fp16", {}, kCount, 1);
    at::Tensor flat = at::full({kCount}, 60000.0f);
    compressor->all_reduce_sum(group, flat, "test");
    if (!flat.eq(240000).all().item<bool>()) FAIL(flat[0].item<float>());
  });
}

TEST_CASE("fp16: what is below its range is sent once there is enough of it") {
  Group alone;
  auto compressor = make_compressor("fp16", {}, 1, 1);
  double applied = 0;
  for (int step = 0; step < 1000; ++step) {
    at::Tensor flat = at::full({1}, 1e-9f);
    compressor->all_reduce_sum(alone, flat, "test");
    applied += flat.item<double>();
  }
  CHECK(applied == doctest::Approx(1e-6).epsilon(0.04));
}

}  // namespace
}  // namespace cohort

#include "cohort/comm/transport/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "cohort/base/fail.h"

using namespace cohort;

namespace {

template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& inputs, at::ScalarType type, Reduction reduction) {
  std::vector<T> result(inputs[0].size());
  std::vector<const std::byte*> arrays;
  for (const auto& input : inputs) arrays.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::byte* const to = reinterpret_cast<std::byte*>(result.data());
  reduce_arrays(&to, 1, arrays.data(), arrays.size(), result.size(), type, reduction);
  return result;
}

template <typename T>
T reduced_one(std::vector<T> values, at::ScalarType type, Reduction reduction) {
  std::vector<std::vector<T>> inputs;
  for (const T value : values) inputs.push_back({value});
  return reduced(inputs, type, reduction)[0];
}

}  // namespace

TEST_CASE("reductions have known answers") {
  CHECK(reduced_one<float>({1, 2, 4}, at::kFloat, Reduction::kSum) == 7);
  CHECK(reduced_one<float>({1, 2, 4}, at::kFloat, Reduction::kAverage) == 7.f / 3);
  CHECK(reduced_one<double>({1.5, -2, 4}, at::kDouble, Reduction::kProduct) == -12);
  CHECK(reduced_one<int64_t>({3, -2, 4}, at::kLong, Reduction::kMin) == -2);
  CHECK(reduced_one<uint32_t>({3, 0x80000000u, 4}, at::kUInt32, Reduction::kMax) == 0x80000000u);
  CHECK(reduced_one<int8_t>({100, 100}, at::kChar, Reduction::kSum) == -56);
  CHECK(reduced_one<uint16_t>({65535, 65535}, at::kUInt16, Reduction::kProduct) == 1);
  CHECK(reduced_one<int16_t>({0b1100, 0b1010, 0b1111}, at::kShort, Reduction::kBitAnd) == 0b1000);
  CHECK(reduced_one<uint8_t>({0b1100, 0b1010}, at::kByte, Reduction::kBitXor) == 0b0110);
  using Complex = std::complex<float>;
  CHECK(reduced_one<Complex>({{1, 2}, {3, 4}}, at::kComplexFloat, Reduction::kProduct) == Complex(-5, 10));
  CHECK(reduced_one<Complex>({{1, 2}, {4, 4}}, at::kComplexFloat, Reduction::kAverage) == Complex(2.5f, 3));
  CHECK(reduced_one<uint8_t>({1, 0, 1}, at::kBool, Reduction::kSum) == 1);
  CHECK(reduced_one<uint8_t>({1, 0, 1}, at::kBool, Reduction::kProduct) == 0);
  CHECK(reduced_one<uint8_t>({1, 1}, at::kBool, Reduction::kBitXor) == 0);
}

TEST_CASE("sums go in the order of the arrays and half-wide ones are rounded once") {
  CHECK(reduced_one<float>({1e8f, 1, -1e8f}, at::kFloat, Reduction::kSum) == 0);
  CHECK(reduced_one<float>({1e8f, -1e8f, 1}, at::kFloat, Reduction::kSum) == 1);
  // 2048 + 1 is 2048 in half; in float the two ones add up before the rounding.
  CHECK(reduced_one<c10::Half>({2048, 1, 1}, at::kHalf, Reduction::kSum) == c10::Half(2050));
  CHECK(reduced_one<c10::BFloat16>({256, 1, 1}, at::kBFloat16, Reduction::kSum) == c10::BFloat16(258));
  // The sum is beyond the largest half (65504), the average is not.
  CHECK(reduced_one<c10::Half>({60000, 60000}, at::kHalf, Reduction::kAverage) == c10::Half(60000));
}

TEST_CASE("NaN wins minimum and maximum wherever it stands") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    CHECK(std::isnan(reduced_one<float>({nan, 1, 2}, at::kFloat, reduction)));
    CHECK(std::isnan(reduced_one<float>({1, nan, 2}, at::kFloat, reduction)));
    CHECK(std::isnan(reduced_one<float>({1, 2, nan}, at::kFloat, reduction)));
  }
}

TEST_CASE("every half and bfloat16 is read and written as LibTorch does") {
  std::vector<c10::Half> halves(65536), ones(65536, c10::Half(1));
  std::vector<c10::BFloat16> brains(65536), zeros(65536, c10::BFloat16(1));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    halves[bits] = c10::Half(static_cast<uint16_t>(bits), c10::Half::from_bits());
    brains[bits] = c10::BFloat16(static_cast<uint16_t>(bits), c10::BFloat16::from_bits());
  }
  const auto half_products = reduced<c10::Half>({halves, ones}, at::kHalf, Reduction::kProduct);
  const auto brain_products = reduced<c10::BFloat16>({brains, zeros}, at::kBFloat16, Reduction::kProduct);
  // Thirds need rounding, of halves at every exponent down to the denormal ones and up to infinity.
  const auto half_thirds = reduced<c10::Half>({halves, halves, halves, ones}, at::kHalf, Reduction::kAverage);
  const auto brain_thirds = reduced<c10::BFloat16>({brains, brains, brains, zeros}, at::kBFloat16, Reduction::kAverage);
  int num_wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto same = [](auto a, auto b) { return a.x == b.x || (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b))); };
    const float half = halves[bits], brain = brains[bits];
    num_wrong += !same(half_products[bits], halves[bits]) + !same(brain_products[bits], brains[bits]);
    num_wrong += !same(half_thirds[bits], c10::Half((half + half + half + 1) / 4));
    num_wrong += !same(brain_thirds[bits], c10::BFloat16((brain + brain + brain + 1) / 4));
  }
  CHECK(num_wrong == 0);
}

TEST_CASE("results may be arrays, and all of them") {
  for (const size_t count : {0u, 1u, 15u, 2047u, 2048u, 2049u, 5000u}) {
    std::vector<std::vector<int32_t>> data(3, std::vector<int32_t>(count));
    for (size_t i = 0; i < count; ++i)
      for (size_t array = 0; array < 3; ++array) data[array][i] = static_cast<int32_t>(i * 7 + array * 1000);
    std::vector<std::byte*> results;
    for (auto& array : data) results.push_back(reinterpret_cast<std::byte*>(array.data()));
    for (const size_t num_arrays : {3u, 1u}) {
      const std::vector<std::byte*> to(results.begin(), results.end());
      const std::vector<const std::byte*> from(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(num_arrays));
      reduce_arrays(to.data(), to.size(), from.data(), from.size(), count, at::kInt, Reduction::kSum);
    }
    bool right = true;
    for (size_t i = 0; i < count; ++i)
      for (const auto& array : data) right = right && array[i] == static_cast<int32_t>(i * 21 + 3000);
    CHECK(right);
  }
}

TEST_CASE("what makes no sense is refused with a sentence") {
  const auto refusal = [](Reduction reduction, at::ScalarType type) -> std::string {
    try {
      check_reduction(reduction, type);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  };
  CHECK(refusal(Reduction::kBitAnd, at::kFloat).find("bit by bit") != std::string::npos);
  CHECK(refusal(Reduction::kMax, at::kComplexDouble).find("no order") != std::string::npos);
  CHECK(refusal(Reduction::kAverage, at::kLong).find("integers have no average") != std::string::npos);
  CHECK(refusal(Reduction::kSum, at::kFloat8_e5m2).find("convert") != std::string::npos);
  CHECK(refusal(Reduction::kSum, at::kBool).empty());
  CHECK(refusal(Reduction::kProduct, at::kComplexFloat).empty());
}

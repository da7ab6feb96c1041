#include "cohort/data/images/image_source.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/errors.h"

using namespace cohort;

namespace {

std::vector<int> resized_values(std::vector<int64_t> input, std::vector<uint8_t> values, int64_t size) {
  DataShape shape{DataShape::Kind::kImage, std::move(input), 10, {}};
  const int64_t samples = static_cast<int64_t>(values.size()) / shape.input_elements();
  ImagePixels pixels{ByteBuffer(static_cast<int64_t>(values.size()), "test"), ByteBuffer(samples, "test")};
  std::ranges::copy(values, pixels.values.data());
  std::fill_n(pixels.labels.data(), samples, uint8_t{3});
  const ImagePixels out = resized("test", std::move(pixels), shape, size);
  CHECK(out.labels.size() == samples);
  CHECK(out.labels.data()[samples - 1] == 3);
  CHECK(shape.input[1] == size);
  CHECK(out.values.size() == samples * shape.input_elements());
  return {out.values.data(), out.values.data() + out.values.size()};
}

}  // namespace

TEST_CASE("resized: halves and thirds by hand, rounded to the nearest, halves up") {
  CHECK(resized_values({1, 2, 2}, {0, 1, 1, 0}, 1) == std::vector<int>{1});
  CHECK(resized_values({1, 2, 2}, {0, 1, 0, 0}, 1) == std::vector<int>{0});
  CHECK(resized_values({1, 1, 4}, {10, 20, 30, 50}, 1) == std::vector<int>{28});  // 27.5
  // 3 to 2: each output pixel covers one and a half: (2 a + b) / 3, (b + 2 c) / 3 both ways.
  CHECK(resized_values({1, 3, 3}, {0, 90, 180, 0, 90, 180, 0, 90, 180}, 2) == std::vector<int>{30, 150, 30, 150});
  CHECK(resized_values({1, 3, 3}, {0, 0, 0, 90, 90, 90, 180, 180, 180}, 2) == std::vector<int>{30, 30, 150, 150});
}

TEST_CASE("resized: larger pictures repeat their pixels, and back again is the same") {
  CHECK(resized_values({1, 2, 2}, {1, 2, 3, 4}, 4) == std::vector<int>{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4});
  CHECK(resized_values({1, 2, 2}, {0, 90, 0, 90}, 3) == std::vector<int>{0, 45, 90, 0, 45, 90, 0, 45, 90});
}

TEST_CASE("resized: the same size is the same picture; channels and samples stay apart") {
  std::vector<uint8_t> values(2 * 3 * 5 * 5);
  std::iota(values.begin(), values.end(), uint8_t{0});
  const std::vector<int> same = resized_values({3, 5, 5}, values, 5);
  CHECK(std::ranges::equal(same, values));
  std::vector<uint8_t> flat;
  for (int plane = 0; plane < 6; ++plane) flat.insert(flat.end(), 35, static_cast<uint8_t>(40 * plane));
  const std::vector<int> out = resized_values({3, 5, 7}, flat, 4);
  for (int i = 0; i < 6 * 16; ++i) CHECK(out[static_cast<size_t>(i)] == 40 * (i / 16));
}

TEST_CASE("resized: white stays white at every size") {
  for (int64_t size : {1, 3, 27, 28, 29, 64})
    for (const int value : resized_values({1, 28, 28}, std::vector<uint8_t>(28 * 28, 255), size)) REQUIRE(value == 255);
}

TEST_CASE("resized: what no memory holds is refused with its numbers") {
  DataShape shape{DataShape::Kind::kImage, {1, 2, 2}, 10, {}};
  ImagePixels pixels{ByteBuffer(4'000'000, "test"), ByteBuffer(1'000'000, "test")};
  CHECK(error_of([&] { resized("pictures", std::move(pixels), shape, 4096); }).find("1000000 pictures of 1x4096x4096") !=
        std::string::npos);
}

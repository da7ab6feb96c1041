#include "cohort/data/images/image_source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "cohort/base/random.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Random pictures; label i is i mod 10.
ImagePixels random_pixels(const DataShape& shape, int64_t count) {
  ImagePixels pixels{ByteBuffer(count * shape.input_elements(), "test"), ByteBuffer(count, "test")};
  for (int64_t i = 0; i < pixels.values.size(); ++i) pixels.values.data()[i] = static_cast<uint8_t>(random_bits(7, i) >> 56);
  for (int64_t i = 0; i < count; ++i) pixels.labels.data()[i] = static_cast<uint8_t>(i % 10);
  return pixels;
}

DataShape shape_of(std::vector<int64_t> input) { return {DataShape::Kind::kImage, std::move(input), 10, {}}; }

}  // namespace

TEST_CASE("channel statistics: known values") {
  ImagePixels pixels{ByteBuffer(8, "test"), ByteBuffer(2, "test")};
  // Two samples of two channels of 1x2: channel 0 has 0, 255, 0, 255; channel 1 is 51 throughout.
  const uint8_t values[8] = {0, 255, 51, 51, 255, 0, 51, 51};
  std::copy_n(values, 8, pixels.values.data());
  const ChannelStatistics statistics = channel_statistics(pixels, shape_of({2, 1, 2}), 0, 2);
  CHECK(statistics.mean == std::vector<double>{0.5, 0.2});
  CHECK(statistics.deviation == std::vector<double>{0.5, 1.0});
}

TEST_CASE("channel statistics: blocks and channels against a plain two-pass sum") {
  for (const auto& input : std::vector<std::vector<int64_t>>{{1, 61, 67}, {3, 17, 23}}) {
    const DataShape shape = shape_of(input);
    const ImagePixels pixels = random_pixels(shape, 40);  // 163,480 values in the first case: more than two blocks.
    const int64_t begin = 3, end = 38, channels = input[0], plane = input[1] * input[2];
    const ChannelStatistics statistics = channel_statistics(pixels, shape, begin, end);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, squares = 0;
      const auto each = [&](auto&& visit) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t at = 0; at < plane; ++at) visit(pixels.values.data()[(i * channels + c) * plane + at] / 255.0);
        }
      };
      each([&](double value) { sum += value; });
      const double count = static_cast<double>((end - begin) * plane), mean = sum / count;
      each([&](double value) { squares += (value - mean) * (value - mean); });
      CHECK(statistics.mean[static_cast<size_t>(c)] == doctest::Approx(mean).epsilon(1e-12));
      CHECK(statistics.deviation[static_cast<size_t>(c)] == doctest::Approx(std::sqrt(squares / count)).epsilon(1e-12));
    }
  }
}

TEST_CASE("channel statistics: the largest sums do not overflow") {
  ImagePixels pixels{ByteBuffer(1 << 20, "test"), ByteBuffer(1, "test")};
  std::fill_n(pixels.values.data(), 1 << 20, uint8_t{255});
  pixels.values.data()[0] = 0;
  const ChannelStatistics statistics = channel_statistics(pixels, shape_of({1, 1024, 1024}), 0, 1);
  const double fraction = 1.0 / (1 << 20);
  CHECK(statistics.mean[0] == doctest::Approx(1 - fraction).epsilon(1e-15));
  CHECK(statistics.deviation[0] == doctest::Approx(std::sqrt(fraction * (1 - fraction))).epsilon(1e-12));
}

TEST_CASE("images: train and validation are the first and the last, normalised by train alone") {
  const DataShape shape = shape_of({3, 4, 5});
  const ImagePixels copy = random_pixels(shape, 50);
  const DataSet data = split_images("test", random_pixels(shape, 50), shape, {.validation_samples = 8});
  REQUIRE(data.train->num_samples() == 42);
  REQUIRE(data.validation->num_samples() == 8);
  CHECK(data.train->shape().targets_per_sample() == 1);
  const ChannelStatistics statistics = channel_statistics(copy, shape, 0, 42);

  Batch batch;
  batch.tokens.resize(3);  // Of an earlier use.
  const std::vector<int64_t> indices{7, 0, 7, 3};
  data.validation->read(indices, batch);
  REQUIRE(batch.num_samples == 4);
  REQUIRE(std::ssize(batch.values) == 4 * 60);
  CHECK(batch.tokens.empty());
  CHECK(batch.targets == std::vector<int64_t>{9, 2, 9, 5});
  for (size_t i = 0; i < indices.size(); ++i) {
    for (int64_t at = 0; at < 60; ++at) {
      const size_t c = static_cast<size_t>(at / 20);
      const double expected = (copy.values.data()[(42 + indices[i]) * 60 + at] / 255.0 - statistics.mean[c]) / statistics.deviation[c];
      REQUIRE(batch.values[i * 60 + static_cast<size_t>(at)] == static_cast<float>(expected));
    }
  }
}

TEST_CASE("images: the whole of train has mean 0 and variance 1 in each channel") {
  const DataShape shape = shape_of({2, 8, 8});
  const DataSet data = split_images("test", random_pixels(shape, 60), shape, {});
  std::vector<int64_t> all(static_cast<size_t>(data.train->num_samples()));
  std::iota(all.begin(), all.end(), 0);
  Batch batch;
  data.train->read(all, batch);
  for (size_t c = 0; c < 2; ++c) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t at = 0; at < 64; ++at) {
        const double value = batch.values[(i * 2 + c) * 64 + at];
        sum += value;
        squares += value * value;
      }
    }
    const double count = static_cast<double>(all.size()) * 64;
    CHECK(std::abs(sum / count) < 1e-6);
    CHECK(squares / count == doctest::Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("images: an index outside, and an empty batch") {
  const DataShape shape = shape_of({1, 2, 2});
  const DataSet data = split_images("test", random_pixels(shape, 10), shape, {});
  Batch batch;
  for (const int64_t index : {int64_t{-1}, int64_t{9}}) {
    CHECK(mentions(error_of([&] { data.train->read(std::vector<int64_t>{index}, batch); }, ErrorCode::kFailed), "there are 9"));
  }
  data.train->read({}, batch);
  CHECK(batch.num_samples == 0);
  CHECK(batch.values.empty());
}

#include "cohort/data/images/picture_of_sample.h"

#include <doctest/doctest.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cohort {
namespace {

/// One sample of given values.
class OneSample : public DataSource {
 public:
  OneSample(std::vector<int64_t> input, std::vector<float> values) : values_(std::move(values)) {
    shape_.input = std::move(input);
    shape_.num_classes = 2;
  }
  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return 1; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    batch = {.num_samples = static_cast<int64_t>(indices.size()), .values = values_, .tokens = {}, .targets = {0}, .numbers = {}};
  }

 private:
  DataShape shape_;
  std::vector<float> values_;
};

struct Pixels {
  unsigned width = 0, height = 0;
  std::vector<unsigned char> values;
};

Pixels pixels_of(const std::string& png, bool is_gray) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_memory(&image, png.data(), png.size()));
  CHECK(image.format == (is_gray ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB));
  Pixels pixels{image.width, image.height, std::vector<unsigned char>(PNG_IMAGE_SIZE(image))};
  REQUIRE(png_image_finish_read(&image, nullptr, pixels.values.data(), 0, nullptr));
  return pixels;
}

}  // namespace

TEST_CASE("a picture is what it was before it was normalised, channel by channel") {
  DataDescription description;
  description.mean = {0.5, 0.25, 0};
  description.deviation = {0.5, 0.25, 2};
  const std::vector<int> bytes = {0, 51, 255, 1, 2, 3, 100, 101, 102, 7, 8, 250};  // 3 channels of 2 x 2.
  std::vector<float> values;
  for (size_t i = 0; i < bytes.size(); ++i)
    values.push_back(static_cast<float>((bytes[i] / 255.0 - description.mean[i / 4]) / description.deviation[i / 4]));
  const Pixels picture = pixels_of(png_of_sample(OneSample({3, 2, 2}, values), description, 0), false);
  CHECK(picture.width == 2);
  for (size_t i = 0; i < bytes.size(); ++i) CHECK(picture.values[i % 4 * 3 + i / 4] == bytes[i]);
  // One number for all channels, or none: then from the darkest to the lightest.
  description.mean = {0.5}, description.deviation = {0.5};
  CHECK(pixels_of(png_of_sample(OneSample({1, 1, 3}, {-1, 0, 1}), description, 0), true).values == std::vector<unsigned char>{0, 128, 255});
  CHECK(pixels_of(png_of_sample(OneSample({1, 1, 3}, {-8, -4, 8}), {}, 0), true).values == std::vector<unsigned char>{0, 64, 255});
  CHECK(pixels_of(png_of_sample(OneSample({1, 1, 2}, {9, 9}), {}, 0), true).values == std::vector<unsigned char>{255, 255});
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  CHECK(pixels_of(png_of_sample(OneSample({1, 1, 3}, {nan, infinity, -infinity}), description, 0), true).values ==
        std::vector<unsigned char>{0, 255, 0});
}

TEST_CASE("large pictures become small ones, by means of whole blocks") {
  std::vector<float> values(3000 * 130);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i / 130 < 1500 ? 0.F : 1.F;
  const std::string png = png_of_sample(OneSample({1, 3000, 130}, values), {}, 0);
  const Pixels picture = pixels_of(png, true);
  CHECK(picture.height <= kMostPictureSide);
  CHECK(picture.height == 3000 / 47);  // Blocks of 47.
  CHECK(picture.width == 2);
  CHECK(picture.values.front() == 0);
  CHECK(picture.values.back() == 255);
  // Noise, which does not compress.
  std::vector<float> noise(3 * 64 * 64);
  uint32_t state = 1;
  for (float& value : noise) value = static_cast<float>((state = state * 1664525 + 1013904223) >> 24) / 255;
  CHECK(png_of_sample(OneSample({3, 64, 64}, noise), {}, 0).size() < 14000);
  for (const auto& [input, expected] : std::vector<std::pair<std::vector<int64_t>, bool>>{
           {{1, 8, 8}, true}, {{3, 8, 8}, true}, {{2, 8, 8}, false}, {{8, 8}, false}, {{64}, false}})
    CHECK(are_pictures(OneSample(input, {}).shape()) == expected);
}

}  // namespace cohort

// Pixels are means of blocks of n x n values, with the smallest n for which both sides are at most kMostPictureSide.

#include "cohort/data/images/picture_of_sample.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// Maps values of a channel to [0, 1]: value x `scale` + `offset`.
struct Scale {
  double scale = 1, offset = 0;
};

std::vector<Scale> scales_of(const DataDescription& description, const std::vector<float>& values, int64_t channels) {
  std::vector<Scale> scales(static_cast<size_t>(channels));
  if (!description.mean.empty()) {
    for (size_t c = 0; c < scales.size(); ++c)
      scales[c] = {description.deviation_at(static_cast<int64_t>(c)), description.mean_at(static_cast<int64_t>(c))};
    return scales;
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (*high > *low) std::fill(scales.begin(), scales.end(), Scale{1.0 / (*high - *low), -*low / (*high - *low)});
  return scales;
}

}  // namespace

bool are_pictures(const DataShape& shape) {
  return shape.kind == DataShape::Kind::kImage && shape.input.size() == 3 && (shape.input[0] == 1 || shape.input[0] == 3);
}

std::string png_of_sample(const DataSource& source, const DataDescription& description, int64_t index) {
  const std::vector<int64_t>& shape = source.shape().input;
  const int64_t channels = shape.at(0), height = shape.at(1), width = shape.at(2);
  Batch batch;
  source.read({&index, 1}, batch);
  const std::vector<Scale> scales = scales_of(description, batch.values, channels);
  const int64_t block = std::max<int64_t>(1, (std::max(height, width) + kMostPictureSide - 1) / kMostPictureSide);
  const int64_t rows = std::max<int64_t>(1, height / block), columns = std::max<int64_t>(1, width / block);
  std::vector<unsigned char> pixels(static_cast<size_t>(rows * columns * channels));
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t y = row * block; y < std::min(height, (row + 1) * block); ++y)
          for (int64_t x = column * block; x < std::min(width, (column + 1) * block); ++x, ++count)
            sum += batch.values[static_cast<size_t>((c * height + y) * width + x)];
        const auto& [scale, offset] = scales[static_cast<size_t>(c)];
        const double value = 255 * (sum / static_cast<double>(count) * scale + offset);
        // Values that are not finite become black.
        pixels[static_cast<size_t>((row * columns + column) * channels + c)] =
            value > 0 ? static_cast<unsigned char>(std::lround(std::min(value, 255.0))) : 0;
      }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(columns);
  image.height = static_cast<png_uint_32>(rows);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string png(size, '\0');
  if (!png_image_write_to_memory(&image, png.data(), &size, 0, pixels.data(), 0, nullptr))
    fail(ErrorCode::kFailed, "a picture of ", columns, " x ", rows, " pixels cannot be written as PNG: ", image.message);
  png.resize(size);
  return png;
}

}  // namespace cohort

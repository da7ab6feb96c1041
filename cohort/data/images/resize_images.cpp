// Pictures of another size: the mean over the area.
//
//   An output pixel covers height / size rows and width / size columns of the input, parts of pixels counted as parts; it is the mean of
//   what it covers, rounded to the nearest byte, halves up. Smaller pictures average, larger ones repeat and blend at the borders of
//   pixels.
//
// All weights are whole numbers (an input pixel is `size` units long, an output pixel `height` or `width`), so a picture is the same bytes
// on every machine and under every layout. Cost: 2 x (input + output) pixels of multiplications, first along rows, then along columns.

#include "cohort/data/images/resize_images.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// The part of an input pixel in an output pixel, in units of 1 / size of an input pixel.
struct Weight {
  int64_t from, units;
};

/// For each of `size` output pixels, what it covers of `length` input pixels; the units of one output pixel sum to `length`.
std::vector<std::vector<Weight>> weights_along(int64_t length, int64_t size) {
  std::vector<std::vector<Weight>> out(static_cast<size_t>(size));
  for (int64_t at = 0; at < size; ++at) {
    const int64_t begin = at * length, end = begin + length;
    for (int64_t from = begin / size; from * size < end; ++from)
      out[static_cast<size_t>(at)].push_back({from, std::min(end, (from + 1) * size) - std::max(begin, from * size)});
  }
  return out;
}

}  // namespace

ImagePixels resized(const std::string& what, ImagePixels pixels, DataShape& shape, int64_t size) {
  const int64_t channels = shape.input[0], height = shape.input[1], width = shape.input[2], samples = pixels.labels.size();
  const int64_t bytes_per_sample = channels * size * size;
  if (bytes_per_sample > kMaxDataBytes / std::max<int64_t>(1, samples))
    fail(ErrorCode::kBadInput, what, ": ", samples, " pictures of ", channels, "x", size, "x", size, " need more than the ", kMaxDataBytes,
         " bytes that a data set may have", name_settings("; use a smaller --image-size"));
  const auto rows = weights_along(height, size), columns = weights_along(width, size);
  ImagePixels out{ByteBuffer(samples * bytes_per_sample, what), std::move(pixels.labels)};
  std::vector<uint64_t> narrow(static_cast<size_t>(height * size));  // One picture whose rows are done.
  const uint64_t area = static_cast<uint64_t>(height * width);
  const uint8_t* in = pixels.values.data();
  uint8_t* to = out.values.data();
  for (int64_t plane = 0; plane < samples * channels; ++plane, in += height * width) {
    uint64_t* sum = narrow.data();
    for (int64_t y = 0; y < height; ++y)
      for (const std::vector<Weight>& weights : columns) {
        *sum = 0;
        for (const Weight& one : weights) *sum += static_cast<uint64_t>(one.units) * in[y * width + one.from];
        ++sum;
      }
    for (const std::vector<Weight>& weights : rows)
      for (int64_t x = 0; x < size; ++x) {
        uint64_t total = 0;
        for (const Weight& one : weights) total += static_cast<uint64_t>(one.units) * narrow[static_cast<size_t>(one.from * size + x)];
        *to++ = static_cast<uint8_t>((total + area / 2) / area);
      }
  }
  shape.input = {channels, size, size};
  return out;
}

}  // namespace cohort

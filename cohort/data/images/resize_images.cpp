// Pictures of another size: the mean over the area.
//
//   An output pixel covers height / out_height rows and width / out_width columns of the input, parts of pixels counted as parts; it is the
//   mean of what it covers, rounded to the nearest byte, halves up. Smaller pictures average, larger ones repeat and blend at the borders
//   of pixels. Sides are changed each by itself: a picture that is not square is squeezed into one that is.
//
// All weights are whole numbers (an input pixel is out_height units long, an output pixel `height`), so a picture is the same bytes on
// every machine and under every layout. Cost: an input pixel of multiplications for the rows, in vector code, then one for each pixel of
// the new rows.

#include "cohort/data/images/resize_images.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {

Resizer::Line Resizer::line_of(int64_t length, int64_t out_length) {
  Line line;
  for (int64_t at = 0; at < out_length; ++at) {
    const int64_t begin = at * length, end = begin + length, from = begin / out_length;
    const auto first = std::ssize(line.units);
    for (int64_t in = from; in * out_length < end; ++in)
      line.units.push_back(static_cast<uint32_t>(std::min(end, (in + 1) * out_length) - std::max(begin, in * out_length)));
    line.covered.push_back({from, std::ssize(line.units) - first, first});
  }
  return line;
}

Resizer::Resizer(int64_t height, int64_t width, int64_t out_height, int64_t out_width)
    : width_(width),
      area_(static_cast<uint64_t>(height * width)),
      rows_(line_of(height, out_height)),
      columns_(line_of(width, out_width)),
      sums_(static_cast<size_t>(width)) {}

/// The weights of a new row sum to `height`, and height x 255 fits 32 bits: a picture has at most 2^26 pixels, a file of them 2^16 rows.
void Resizer::resize(const uint8_t* in, uint8_t* out) {
  for (const Line::Covered& rows : rows_.covered) {
    std::fill(sums_.begin(), sums_.end(), 0U);
    uint32_t* const sums = sums_.data();
    for (int64_t k = 0; k < rows.count; ++k) {
      const uint32_t units = rows_.units[static_cast<size_t>(rows.first + k)];
      const uint8_t* row = in + (rows.from + k) * width_;
      for (int64_t x = 0; x < width_; ++x) sums[x] += units * row[x];
    }
    for (const Line::Covered& columns : columns_.covered) {
      uint64_t total = 0;
      for (int64_t k = 0; k < columns.count; ++k)
        total += uint64_t{columns_.units[static_cast<size_t>(columns.first + k)]} * sums[columns.from + k];
      *out++ = static_cast<uint8_t>((total + area_ / 2) / area_);
    }
  }
}

ImagePixels resized(const std::string& what, ImagePixels pixels, DataShape& shape, int64_t size) {
  const int64_t channels = shape.input[0], height = shape.input[1], width = shape.input[2], samples = pixels.labels.size();
  const int64_t bytes_per_sample = channels * size * size;
  if (bytes_per_sample > kMaxDataBytes / std::max<int64_t>(1, samples))
    fail(ErrorCode::kBadInput, what, ": ", samples, " pictures of ", channels, "x", size, "x", size, " need more than the ", kMaxDataBytes,
         " bytes that a data set may have", name_settings("; use a smaller --image-size"));
  ImagePixels out{ByteBuffer(samples * bytes_per_sample, what), std::move(pixels.labels)};
  Resizer resizer(height, width, size, size);
  for (int64_t plane = 0; plane < samples * channels; ++plane)
    resizer.resize(pixels.values.data() + plane * height * width, out.values.data() + plane * size * size);
  shape.input = {channels, size, size};
  return out;
}

}  // namespace cohort

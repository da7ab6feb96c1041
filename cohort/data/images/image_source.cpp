#include "cohort/data/images/image_source.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/data/source/split.h"

namespace cohort {
namespace {

__extension__ typedef unsigned __int128 Wide;

int64_t num_channels(const DataShape& shape) { return shape.input.size() == 3 ? shape.input[0] : 1; }

}  // namespace

/// Inner sums are 32 bits wide so that the compiler makes vector code of them; a block's sum of squares is
/// at most 2^16 x 255^2 < 2^32.
void add_bytes(ByteSums& sums, const uint8_t* values, int64_t count) {
  constexpr int64_t kBlock = 1 << 16;
  for (int64_t at = 0; at < count; at += kBlock) {
    const uint8_t* block = values + at;
    const int size = static_cast<int>(std::min(kBlock, count - at));
    uint32_t sum = 0, squares = 0;
    for (int i = 0; i < size; ++i) {
      const uint32_t value = block[i];
      sum += value;
      squares += value * value;
    }
    sums.of_values += sum;
    sums.of_squares += squares;
  }
}

/// Exact until the last division and root: variance = (n sum(x^2) - sum(x)^2) / n^2.
ChannelStatistics statistics_of_sums(const std::vector<ByteSums>& sums, int64_t num_bytes) {
  const auto count = static_cast<uint64_t>(num_bytes);
  ChannelStatistics statistics;
  for (const ByteSums& sum : sums) {
    const Wide spread = Wide{count} * sum.of_squares - Wide{sum.of_values} * sum.of_values;
    const double deviation = std::sqrt(static_cast<double>(spread)) / (static_cast<double>(count) * 255.0);
    statistics.mean.push_back(static_cast<double>(sum.of_values) / (static_cast<double>(count) * 255.0));
    statistics.deviation.push_back(spread == 0 ? 1.0 : deviation);
  }
  return statistics;
}

ChannelStatistics channel_statistics(const ImagePixels& pixels, const DataShape& shape, int64_t begin, int64_t end) {
  const int64_t channels = num_channels(shape), elements = shape.input_elements(), plane = elements / channels;
  std::vector<ByteSums> sums(static_cast<size_t>(channels));
  const uint8_t* first = pixels.values.data() + begin * elements;
  if (channels == 1) {
    add_bytes(sums[0], first, (end - begin) * elements);
  } else {
    for (int64_t i = 0; i < (end - begin) * channels; ++i) add_bytes(sums[static_cast<size_t>(i % channels)], first + i * plane, plane);
  }
  return statistics_of_sums(sums, (end - begin) * plane);
}

std::array<float, 256> normalised_bytes(double mean, double deviation) {
  std::array<float, 256> table{};
  for (int value = 0; value < 256; ++value) table[static_cast<size_t>(value)] = static_cast<float>((value / 255.0 - mean) / deviation);
  return table;
}

ImageSource::ImageSource(std::shared_ptr<const ImagePixels> pixels, DataShape shape, ChannelStatistics statistics, int64_t begin,
                         int64_t end, bool resized)
    : pixels_(std::move(pixels)),
      shape_(std::move(shape)),
      statistics_(std::move(statistics)),
      begin_(begin),
      end_(end),
      resized_(resized) {
  for (size_t channel = 0; channel < statistics_.mean.size(); ++channel)
    tables_.push_back(normalised_bytes(statistics_.mean[channel], statistics_.deviation[channel]));
}

DataDescription ImageSource::describe() const {
  DataDescription description = DataSource::describe();
  if (shape_.input.size() == 3) description.input = DataDescription::Input::kPicture;
  description.mean = statistics_.mean;
  description.deviation = statistics_.deviation;
  description.resized = resized_;
  return description;
}

void ImageSource::read(std::span<const int64_t> indices, Batch& batch) const {
  const int64_t elements = shape_.input_elements(), plane = elements / static_cast<int64_t>(tables_.size());
  resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
  float* out = batch.values.data();
  for (size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], num_samples());
    const int64_t sample = begin_ + indices[i];
    const uint8_t* in = pixels_->values.data() + sample * elements;
    for (const auto& table : tables_) {
      for (int64_t at = 0; at < plane; ++at) out[at] = table[in[at]];
      in += plane;
      out += plane;
    }
    batch.targets[i] = pixels_->labels.data()[sample];
  }
}

DataSet split_images(const std::string& what, ImagePixels pixels, DataShape shape, const DataOptions& options) {
  const int64_t samples = pixels.labels.size();
  const int64_t train = samples - num_validation_samples(what, samples, options);
  if (options.image_size > 0) pixels = resized(what, std::move(pixels), shape, options.image_size);
  const auto shared = std::make_shared<const ImagePixels>(std::move(pixels));
  const ChannelStatistics statistics = channel_statistics(*shared, shape, 0, train);
  DataSet data;
  data.train = std::make_shared<ImageSource>(shared, shape, statistics, 0, train, options.image_size > 0);
  data.validation = std::make_shared<ImageSource>(shared, shape, statistics, train, samples, options.image_size > 0);
  return data;
}

// Resizing by area averaging: an output pixel is the mean of the height / out_height rows and width / out_width columns of the input that
// it covers, with fractional pixels, rounded to the nearest byte, halves up. The aspect ratio is not kept. All weights are integers (an
// input pixel is out_height units long, an output pixel `height`), so results are bitwise reproducible. Cost: one multiplication per input
// pixel for the rows, vectorised, then one per pixel of the new rows.

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

std::shared_ptr<const DataSource> test_pictures(const ImageSource& train, const std::string& what, ImagePixels pixels, DataShape shape,
                                                const DataOptions& options) {
  const int64_t rows = shape.input.at(1), columns = shape.input.at(2);
  if (options.image_size > 0) pixels = resized(what, std::move(pixels), shape, options.image_size);
  if (shape.input != train.shape().input)
    fail(ErrorCode::kBadInput, what, " has pictures of ", rows, "x", columns, ", and the training files of ", train.shape().input.at(1),
         "x", train.shape().input.at(2), "; the test set must have the same size, or be taken away");
  const int64_t count = pixels.labels.size();
  return std::make_shared<ImageSource>(std::make_shared<const ImagePixels>(std::move(pixels)), train.shape(), train.statistics(), 0, count);
}

}  // namespace cohort

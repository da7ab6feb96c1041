#include "cohort/data/images/image_source.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/data/images/resize_images.h"
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

}  // namespace cohort

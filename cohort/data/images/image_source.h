#pragma once
// Pictures in memory, one byte per value, read as normalised floats; resizing them (--image-size) when they are loaded; their test sets.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// num_samples x input_elements bytes, channel by channel within a sample, and a label per sample.
struct ImagePixels {
  ByteBuffer values;
  ByteBuffer labels;
};

/// Per channel; bytes 0..255 stand for [0, 1].
struct ChannelStatistics {
  std::vector<double> mean, deviation;
};

/// Sums of bytes, exact.
struct ByteSums {
  uint64_t of_values = 0, of_squares = 0;
  void operator+=(const ByteSums& other) { of_values += other.of_values, of_squares += other.of_squares; }
};
/// Adds `count` bytes at `values`.
void add_bytes(ByteSums& sums, const uint8_t* values, int64_t count);
/// Statistics per channel from its sums over `count` bytes.
ChannelStatistics statistics_of_sums(const std::vector<ByteSums>& sums, int64_t count);

/// Mean and population standard deviation per channel over the samples [begin, end). Sums are integers, so the result is bitwise
/// reproducible. A constant channel gets the deviation 1.
ChannelStatistics channel_statistics(const ImagePixels& pixels, const DataShape& shape, int64_t begin, int64_t end);

/// (byte / 255 - mean) / deviation for each byte value.
std::array<float, 256> normalised_bytes(double mean, double deviation);

/// The samples [begin, end) of `pixels`; value x of channel c becomes (x / 255 - mean[c]) / deviation[c].
class ImageSource : public DataSource {
 public:
  /// `resized`: the pictures had another size in their files.
  ImageSource(std::shared_ptr<const ImagePixels> pixels, DataShape shape, ChannelStatistics statistics, int64_t begin, int64_t end,
              bool resized = false);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return end_ - begin_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override;
  DataDescription describe() const override;
  const ChannelStatistics& statistics() const { return statistics_; }
  /// num_samples() x input_elements bytes.
  const uint8_t* bytes() const { return pixels_->values.data() + begin_ * shape_.input_elements(); }

 private:
  std::shared_ptr<const ImagePixels> pixels_;
  DataShape shape_;
  ChannelStatistics statistics_;
  int64_t begin_, end_;
  bool resized_;
  std::vector<std::array<float, 256>> tables_;  // Per channel: byte to normalised float.
};

/// Train (the first samples) and validation (the last) over one buffer, normalised by the statistics of train. `what` names the data in
/// errors. Both have the size that options.image_size asks for.
DataSet split_images(const std::string& what, ImagePixels pixels, DataShape shape, const DataOptions& options);

/// Resizes channels from `height` x `width` to `out_height` x `out_width` pixels. One thread at a time; cheap to construct.
class Resizer {
 public:
  Resizer(int64_t height, int64_t width, int64_t out_height, int64_t out_width);
  /// One channel: height x width bytes at `in` to out_height x out_width at `out`.
  void resize(const uint8_t* in, uint8_t* out);

 private:
  /// For each output pixel of a line the `count` input pixels from `from` on that it covers; their weights are in `units` from `first` on.
  struct Line {
    struct Covered {
      int64_t from, count, first;
    };
    std::vector<Covered> covered;
    std::vector<uint32_t> units;
  };
  static Line line_of(int64_t length, int64_t out_length);

  int64_t width_;
  uint64_t area_;
  Line rows_, columns_;
  std::vector<uint32_t> sums_;  // One new row before its pixels are joined.
};

/// Every picture of `pixels` as `size` x `size`; `shape` becomes that of the result, labels stay. Error(kBadInput) that names `what` where
/// the result would need more memory than a data set may.
ImagePixels resized(const std::string& what, ImagePixels pixels, DataShape& shape, int64_t size);

/// A test set of `pixels` (of `shape`) from the files `what`, resized by `options` and normalised by the statistics of `train`.
/// Error(kBadInput) naming `what` for another size than the training's.
std::shared_ptr<const DataSource> test_pictures(const ImageSource& train, const std::string& what, ImagePixels pixels, DataShape shape,
                                                const DataOptions& options);

}  // namespace cohort

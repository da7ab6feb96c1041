#pragma once
// Pictures in memory, one byte a value, handed out as normalised floats; how they get another size (--image-size), once when they are
// read; and the test set of those that come with one.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// num_samples x input_elements bytes, channel by channel inside a sample, and a label for each sample. Train and validation share one.
struct ImagePixels {
  ByteBuffer values;
  ByteBuffer labels;
};

/// Per channel, in units of the interval [0, 1] that bytes 0..255 stand for.
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
/// Of one channel a member, each the sums of `count` bytes.
ChannelStatistics statistics_of_sums(const std::vector<ByteSums>& sums, int64_t count);

/// Mean and standard deviation (of the population) per channel over the samples [begin, end). Sums are integers, so the result is the same
/// bits whatever the machine or the compiler's options. A channel of one single value gets the deviation 1: its values become 0.
ChannelStatistics channel_statistics(const ImagePixels& pixels, const DataShape& shape, int64_t begin, int64_t end);

/// For each byte, what the model gets: (byte / 255 - mean) / deviation.
std::array<float, 256> normalised_bytes(double mean, double deviation);

/// The samples [begin, end) of `pixels`; value x of channel c becomes (x / 255 - mean[c]) / deviation[c].
class ImageSource : public DataSource {
 public:
  /// `resized`: the files have pictures of another size.
  ImageSource(std::shared_ptr<const ImagePixels> pixels, DataShape shape, ChannelStatistics statistics, int64_t begin, int64_t end,
              bool resized = false);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return end_ - begin_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override;
  DataDescription describe() const override;
  const ChannelStatistics& statistics() const { return statistics_; }
  /// num_samples() x input_elements, channel by channel inside a sample.
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

// Pictures of another size (--image-size), made once when they are read.

/// Makes channels of `out_height` x `out_width` pixels of ones of `height` x `width`. One thread at a time; cheap to make for each picture.
class Resizer {
 public:
  Resizer(int64_t height, int64_t width, int64_t out_height, int64_t out_width);
  /// One channel: height x width bytes at `in` to out_height x out_width at `out`.
  void resize(const uint8_t* in, uint8_t* out);

 private:
  /// What each of a line's new pixels covers of the old: `count` of them from `from` on, whose weights stand in `units` from `first` on.
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

// The test set of pictures that come with one.

/// `pixels` of the files `what` (`shape`: as they are there) as pictures like those of `train`: resized as `options` say, and normalised by
/// the statistics of the training. Error(kBadInput) naming `what` for another size than the training's.
std::shared_ptr<const DataSource> test_pictures(const ImageSource& train, const std::string& what, ImagePixels pixels, DataShape shape,
                                                const DataOptions& options);

}  // namespace cohort

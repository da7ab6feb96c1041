#pragma once
// Pictures of another size (--image-size), made once when they are read.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/images/image_source.h"

namespace cohort {

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

}  // namespace cohort

#pragma once
// Pictures of another size (--image-size), made once when they are read.

#include <cstdint>
#include <string>

#include "cohort/data/images/image_source.h"

namespace cohort {

/// Every picture of `pixels` as `size` x `size`; `shape` becomes that of the result, labels stay. Error(kBadInput) that names `what` where
/// the result would need more memory than a data set may.
ImagePixels resized(const std::string& what, ImagePixels pixels, DataShape& shape, int64_t size);

}  // namespace cohort

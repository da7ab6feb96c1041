#include "cohort/data/images/test_set.h"

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/data/images/resize_images.h"

namespace cohort {

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

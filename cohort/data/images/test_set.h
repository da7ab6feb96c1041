#pragma once
// The test set of pictures that come with one.

#include <memory>
#include <string>

#include "cohort/data/images/image_source.h"

namespace cohort {

/// `pixels` of the files `what` (`shape`: as they are there) as pictures like those of `train`: resized as `options` say, and normalised by
/// the statistics of the training. Error(kBadInput) naming `what` for another size than the training's.
std::shared_ptr<const DataSource> test_pictures(const ImageSource& train, const std::string& what, ImagePixels pixels, DataShape shape,
                                                const DataOptions& options);

}  // namespace cohort

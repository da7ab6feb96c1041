#pragma once
// A sample as people see it: the picture that a model got, as a small PNG. Torch-free.

#include <optional>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

inline constexpr int64_t kMostPictureSide = 64;  ///< Pixels: larger pictures are made smaller by a whole number.

/// Whether samples are pictures of one or three channels.
bool are_pictures(const DataShape& shape);

/// Sample `index` as the bytes of a PNG (at most some 13 KB), with the normalisation of `description` taken back; where it has none, from
/// the darkest to the lightest of its values. Error(kFailed) where libpng fails. For are_pictures() only.
std::string png_of_sample(const DataSource& source, const DataDescription& description, int64_t index);

}  // namespace cohort

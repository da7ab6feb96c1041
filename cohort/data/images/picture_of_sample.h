#pragma once
// Renders a sample as a small PNG. Torch-free.

#include <optional>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

inline constexpr int64_t kMostPictureSide = 64;  ///< Pixels; larger pictures are reduced by an integer factor.

/// Whether samples are pictures of one or three channels.
bool are_pictures(const DataShape& shape);

/// Sample `index` as a PNG (at most about 13 KB), with the normalisation of `description` reversed, or scaled to the range of its values.
/// Error(kFailed) where libpng fails. For are_pictures() only.
std::string png_of_sample(const DataSource& source, const DataDescription& description, int64_t index);

}  // namespace cohort

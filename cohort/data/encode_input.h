#pragma once
// A raw input as the floats (or bytes) that the training would have made of it: for predictions on what a user brings.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/source/description.h"

namespace cohort {

/// One sample: product(shape) of one of the two.
struct EncodedInput {
  std::vector<float> values;    ///< Pictures, rows, tensors.
  std::vector<int64_t> tokens;  ///< Text.
};

/// Of all four: `what` names the input in the Error(kBadInput) for one that does not fit the description, or another kind of it.
///
/// A JPEG or PNG file. Colours become grey where the training had one channel, grey ones three alike where it had three.
EncodedInput encode_picture(const DataDescription& description, std::span<const uint8_t> file, const std::string& what);
/// The fields of a row under their names, in any order; names that the training did not read (such as the target's) are passed over.
EncodedInput encode_row(const DataDescription& description, std::span<const std::string> names, std::span<const std::string> fields,
                        const std::string& what);
/// The last `context` bytes of a text; a shorter one is followed by zeros, so the answer for the byte after it is at its last byte's place.
EncodedInput encode_text(const DataDescription& description, std::string_view text, const std::string& what);
/// Numbers in the order of the shape, before normalisation.
EncodedInput encode_numbers(const DataDescription& description, std::span<const double> numbers, const std::string& what);

/// What number `output` of a regression's answer stands for, in the units of the data.
double decode_target(const DataDescription& description, size_t output, double answer);

}  // namespace cohort

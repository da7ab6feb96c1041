#pragma once
// Encodes raw inputs for predictions as the training encoded its samples.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/source/description.h"

namespace cohort {

/// One sample: product(shape) values or tokens.
struct EncodedInput {
  std::vector<float> values;    ///< Pictures, rows, tensors.
  std::vector<int64_t> tokens;  ///< Text.
};

// Each throws Error(kBadInput), which names the input `what`, where it does not fit the description.

/// A JPEG or PNG file, converted to the training's number of channels.
EncodedInput encode_picture(const DataDescription& description, std::span<const uint8_t> file, const std::string& what);
/// A row of named fields in any order; columns that the training did not read (such as the target) are ignored.
EncodedInput encode_row(const DataDescription& description, std::span<const std::string> names, std::span<const std::string> fields,
                        const std::string& what);
/// The last `context` tokens of a text; a shorter one is padded with zeros at its end.
EncodedInput encode_text(const DataDescription& description, std::string_view text, const std::string& what);
/// Numbers in row-major order, before normalisation.
EncodedInput encode_numbers(const DataDescription& description, std::span<const double> numbers, const std::string& what);

/// Output number `output` of a regression in the units of the data.
double decode_target(const DataDescription& description, size_t output, double answer);

}  // namespace cohort

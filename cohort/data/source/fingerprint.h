#pragma once
// Distinguishes data sets of the same shape.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// 16 hexadecimal digits (XXH3, 64 bits) of training and validation: numbers of samples, shape, class names, and encoded samples with their
/// targets, all of them up to kFingerprintValues numbers, else evenly spaced ones including the first and the last. So a change of a few
/// samples of a large set may go undetected. Independent of name and location of the data. Not cryptographic.
std::string data_fingerprint(const DataSet& data);

inline constexpr int64_t kFingerprintValues = int64_t{1} << 22;

}  // namespace cohort

#pragma once
// What tells one data set from another of the same shape.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// 16 hexadecimal digits (XXH3, 64 bits) of a data set: numbers of samples, shape, names of classes, and samples with their labels, as the
/// model gets them, of training and validation, in their order. Every sample is read where a part holds up to kFingerprintValues numbers,
/// else as many as make up that number, evenly spread, the first and the last among them: a change of a few samples of a large set may
/// stay unseen, other data do not. The name of the data and where they lie do not matter. No signature: it finds mistakes.
std::string data_fingerprint(const DataSet& data);

inline constexpr int64_t kFingerprintValues = int64_t{1} << 22;

}  // namespace cohort

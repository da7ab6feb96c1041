#pragma once
// What all sources share: how many samples are kept for validation, and the shape of a batch.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

/// How many of `num_samples` (the last ones) are for validation: options.validation_samples, or if that is 0, 5,000 of at least 55,000,
/// else a tenth, at least one. Fewer than 2 samples, or none left to train on: Error(kBadInput) that names `what`.
int64_t num_validation_samples(const std::string& what, int64_t num_samples, const DataOptions& options);

/// Which of `num_samples` are for training and which for validation, both in ascending order.
struct SplitSamples {
  std::vector<int64_t> train, validation;
};
/// As many as num_validation_samples says, drawn by `seed`: data whose order means something (class after class) are split alike.
SplitSamples split_by_seed(const std::string& what, int64_t num_samples, const DataOptions& options, uint64_t seed);

/// Sizes the vectors of `batch` for `num_samples` samples of `shape`; memory that is there already is kept.
void resize_batch(Batch& batch, const DataShape& shape, int64_t num_samples);

/// Error(kFailed) unless 0 <= index < num_samples: a slip of the caller, not of the input.
void check_index(int64_t index, int64_t num_samples);

}  // namespace cohort

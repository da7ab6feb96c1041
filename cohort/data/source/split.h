#pragma once
// What all sources share: how many samples are kept for validation, the first samples as a source of their own, the shape of a batch, and
// work on many samples by several threads.

#include <cstdint>
#include <functional>
#include <memory>
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

// The first samples of a source as a source of their own.

/// The first `count` samples of `source`, or all where there are no more or `count` is negative.
std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count);

// Work on many samples by several threads, for as long as the call lasts: a source may be read before and after a fork.

/// Calls work(i) for each i in [0, count), in any order, on up to `num_threads` threads of which the caller is one. Where calls throw, the
/// exception of the lowest i is thrown once all have ended, so that the message does not depend on which thread was first.
void in_threads(int num_threads, int64_t count, const std::function<void(int64_t i)>& work);

}  // namespace cohort

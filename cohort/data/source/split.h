#pragma once
// What all sources share: how many samples are kept for validation, the first samples as a source of their own, the shape of a batch, and
// work on many samples by several threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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

/// Some samples of data that a description determines; subclasses read them.
class DescribedSource : public DataSource {
 public:
  /// `samples`: indices into what the subclass reads from.
  DescribedSource(DataDescription description, std::vector<int64_t> samples)
      : description_(std::move(description)),
        shape_{DataShape::Kind::kImage,  description_.shape,      description_.num_outputs,
               description_.class_names, description_.regression, description_.labels},
        samples_(std::move(samples)) {}

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return std::ssize(samples_); }
  DataDescription describe() const override { return description_; }

 protected:
  /// The sample behind an index of read(). Error(kFailed) for an index out of range.
  int64_t sample_at(int64_t index) const {
    check_index(index, num_samples());
    return samples_[static_cast<size_t>(index)];
  }

  const DataDescription description_;
  const DataShape shape_;

 private:
  std::vector<int64_t> samples_;
};

// The first samples of a source as a source of their own.

/// The first `count` samples of `source`, or all where there are no more or `count` is negative.
std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count);

// Work on many samples by several threads, for as long as the call lasts: a source may be read before and after a fork.

/// Calls work(i) for each i in [0, count), in any order, on up to `num_threads` threads of which the caller is one. Where calls throw, the
/// exception of the lowest i is thrown once all have ended, so that the message does not depend on which thread was first.
void in_threads(int num_threads, int64_t count, const std::function<void(int64_t i)>& work);

}  // namespace cohort

#pragma once
// Shared by all sources: the split into training and validation, subsets of samples, the shape of a batch, parallel work on samples.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

/// Number of validation samples (DataOptions::validation_samples). Error(kBadInput) that names `what` for fewer than 2 samples, or none
/// left to train on.
int64_t num_validation_samples(const std::string& what, int64_t num_samples, const DataOptions& options);

/// Indices of training and validation samples, ascending.
struct SplitSamples {
  std::vector<int64_t> train, validation;
};
/// Draws the validation samples by `seed`, so that ordered data (class after class) are split evenly.
SplitSamples split_by_seed(const std::string& what, int64_t num_samples, const DataOptions& options, uint64_t seed);

/// Resizes the vectors of `batch` for `num_samples` samples of `shape`, reusing memory.
void resize_batch(Batch& batch, const DataShape& shape, int64_t num_samples);

/// Error(kFailed) unless 0 <= index < num_samples.
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

/// The first `count` samples of `source`; all if there are fewer or `count` is negative.
std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count);

/// Calls work(i) for each i in [0, count), in any order, on up to `num_threads` threads including the caller, which end with the call
/// (sources are read before and after forks). Rethrows the exception of the lowest i, so that the message is deterministic.
void parallel_for_samples(int num_threads, int64_t count, const std::function<void(int64_t i)>& work);

}  // namespace cohort

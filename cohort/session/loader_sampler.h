#pragma once
// For programs with LibTorch's data loader: exchange the sampler, and each rank reads its own rows of the same global batches.
//
//   cohort::LoaderSampler sampler(session, data.size().value());      // was: torch::data::samplers::RandomSampler
//   auto loader = torch::data::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions().batch_size(64));
//   for (auto& batch : *loader) {
//     session.set_samples(batch.data.size(0));                        // Where batches do not divide evenly by the ranks.
//
// The loader's batch size is that of all ranks together, as in the program for one process. Loaders read ahead, so that the sampler cannot
// say by itself how many samples the rows in hand are: where ranks have different numbers of them the loop has to, after each batch that
// it takes, and backward() without it is an Error.

#include <c10/util/ArrayRef.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/sampler.h"
#include "cohort/session/session.h"

namespace cohort {

/// What a data set is asked for: this rank's rows of one global batch. To the loader it is as long as the global batch, so that its
/// drop_last drops the same batches as in one process.
class LoaderRows {
 public:
  LoaderRows(std::vector<size_t> rows, size_t global_batch) : rows_(std::move(rows)), global_batch_(global_batch) {}
  size_t size() const { return global_batch_; }
  operator c10::ArrayRef<size_t>() const { return rows_; }  // NOLINT: the data set's argument.
  operator std::vector<size_t>() const { return rows_; }    // NOLINT

 private:
  std::vector<size_t> rows_;
  size_t global_batch_;
};

struct LoaderSamplerOptions {
  bool shuffle = true;      ///< Another order each epoch, from the session's seed; the same on all ranks.
  bool drop_last = false;   ///< The last batch of an epoch where it is smaller. In place of the loader's, which comes to the same.
  int64_t first_epoch = 0;  ///< Of the first pass over the loader: where a checkpoint goes on.
};

/// Each pass over the loader is the next epoch. Batches are those of SessionSampler. Errors are thrown by begin() of the loader, on all
/// ranks: Error(kBadInput) for a batch, the last one too, with fewer samples than ranks. One thread, as data loaders use it.
class COHORT_API LoaderSampler : public torch::data::samplers::Sampler<LoaderRows> {
 public:
  LoaderSampler(Session session, size_t num_samples, LoaderSamplerOptions options = {});

  /// The next epoch, of `new_size` samples where it is given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<LoaderRows> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void begin_epoch(size_t batch_size);

  Session session_;
  LoaderSamplerOptions options_;
  int64_t num_samples_;
  int64_t epoch_;           ///< One before the first until reset().
  int64_t step_ = 0;        ///< Of the epoch.
  int64_t batch_size_ = 0;  ///< Of the epoch; 0 before its first batch.
  int64_t steps_per_epoch_ = 0;
  std::optional<cohort::Sampler> sampler_;
};

}  // namespace cohort

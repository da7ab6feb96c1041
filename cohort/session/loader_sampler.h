#pragma once
// A sampler for LibTorch's data loader with which each rank reads its own rows of the same global batches.
//
//   cohort::LoaderSampler sampler(session, data.size().value());      // was: torch::data::samplers::RandomSampler
//   auto loader = torch::data::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions().batch_size(64));
//   for (auto& batch : *loader) {
//     session.set_samples(batch.data.size(0));                        // Needed if batches do not divide evenly by the ranks.
//
// The loader's batch size is that of all ranks together, as in the program for one process. Since loaders read ahead, the sampler does not
// know which batch the loop has. If ranks have different numbers of samples, the loop must call set_samples() after each batch, and
// backward() without it is an Error.

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

/// This rank's rows of a global batch. Its size() is that of the global batch, so that the loader's drop_last drops the same batches as in
/// one process.
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
  bool shuffle = true;      ///< A new order for each epoch, by the session's seed; the same on all ranks.
  bool drop_last = false;   ///< Drops a smaller last batch of an epoch, as the loader's own option does.
  int64_t first_epoch = 0;  ///< The epoch of the first pass over the loader, to resume from a checkpoint.
};

/// Each pass over the loader is the next epoch. Batches are those of SessionSampler. begin() of the loader throws Error(kBadInput) on all
/// ranks for a batch with fewer samples than ranks. One thread, as data loaders use it.
class COHORT_API LoaderSampler : public torch::data::samplers::Sampler<LoaderRows> {
 public:
  LoaderSampler(Session session, size_t num_samples, LoaderSamplerOptions options = {});

  /// Begins the next epoch, with `new_size` samples if that is given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<LoaderRows> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void begin_epoch(size_t batch_size);

  Session session_;
  LoaderSamplerOptions options_;
  int64_t num_samples_;
  int64_t epoch_;           // Before the first reset(): the one before the first epoch.
  int64_t step_ = 0;        // Position in the epoch.
  int64_t batch_size_ = 0;  // 0 before the first batch of an epoch.
  int64_t steps_per_epoch_ = 0;
  std::optional<cohort::Sampler> sampler_;
};

}  // namespace cohort

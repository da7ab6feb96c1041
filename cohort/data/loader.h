#pragma once
// Prefetches batches on one background thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/data/images/augment.h"
#include "cohort/data/sampler.h"
#include "cohort/data/source/source.h"

namespace cohort {

struct LoadedBatch;

struct LoaderOptions {
  int64_t global_batch = 1;
  std::vector<BatchStage> stages = {};  ///< How it grows.
  uint64_t seed = 0;
  int rank = 0;                  ///< Position on the data axis,
  int num_ranks = 1;             ///< and the size of that axis.
  int64_t granularity = 1;       ///< See share_of_rank.
  int pieces = 1;                ///< Micro-steps of a step (gradient accumulation), see pieces_of_rank; of a grown one as many times more.
  int64_t first_step = 0;        ///< > 0 for a resumed run.
  int64_t end_step = 0;          ///< Exclusive; 0: no end.
  int read_ahead = 2;            ///< Prefetched batches.
  bool reads_all_ranks = false;  ///< Read the pieces of all ranks, in rank order, instead of `rank`'s.
  std::vector<double> weights;   ///< Per rank, see shares_of_batch; empty: equal shares.
  Augmentation augmentation = {};
  /// If set, called on the background thread for each batch. Its exceptions are rethrown by next().
  std::function<std::vector<float>(LoadedBatch& batch)> answer = {};
};

/// This rank's share of the global batch of `step`.
struct LoadedBatch {
  int64_t step = 0;
  int64_t global_samples = 0;  ///< Of all ranks.
  /// This rank's positions in the global batch, one share per micro-step, in the order of `batch`. As many on every rank; some may be empty
  /// (see pieces_of_rank).
  std::vector<Share> pieces;
  Batch batch;
  std::vector<int64_t> samples;  ///< Indices of its samples in the data.
  std::vector<float> answers;    ///< Of LoaderOptions::answer.
  double waited_seconds = 0;     ///< Time that next() was blocked.

  int64_t num_local_samples() const { return batch.num_samples; }
};

/// For one consumer thread. The destructor stops and joins the reader.
class Loader {
 public:
  Loader(std::shared_ptr<const DataSource> source, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The batches in order from first_step on. Rethrows an exception of the source after the batches before it, and in every later call.
  /// Past end_step: Error(kFailed).
  LoadedBatch next();
  /// Makes the shares of steps from `from_step` on proportional to `weights` (one per rank). Every rank makes the same call, at any time
  /// before that step is read. Error(kBadInput) where from_step is below first_free_step(), or the weights are not one positive number per
  /// rank.
  void set_weights(int64_t from_step, std::vector<double> weights);
  /// The first step that cannot have been prefetched: read_ahead + 1 after the last one of next().
  int64_t first_free_step() const;
  /// Optional: recycles the memory of a batch. Thread-safe.
  void recycle(Batch batch);
  int64_t steps_per_epoch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t steps_per_epoch_ = 0;
};

}  // namespace cohort

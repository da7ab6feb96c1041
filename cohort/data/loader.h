#pragma once
// Reads batches ahead of training on one background thread.

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
  int rank = 0;                 ///< This rank's place on the data axis,
  int num_ranks = 1;            ///< and the size of that axis.
  int64_t granularity = 1;      ///< See share_of_rank.
  int pieces = 1;               ///< Micro-steps of a step (gradient accumulation), see pieces_of_rank; of a grown one as many times more.
  int64_t first_step = 0;       ///< > 0 when a run is resumed.
  int64_t end_step = 0;         ///< No step at or after this one is read; 0: no end.
  int read_ahead = 2;           ///< Batches kept ready.
  bool all_in_turn = false;     ///< The pieces of all ranks, one rank after the other, instead of `rank`'s.
  std::vector<double> weights;  ///< One a rank, see shares_of_batch; empty: equal shares.
  Augmentation augmentation = {};
  /// Not empty: asked on the background thread about each batch that was read. What it throws is thrown by next().
  std::function<std::vector<float>(LoadedBatch& batch)> answer = {};
};

/// What next() hands out: this rank's share of the global batch of `step`.
struct LoadedBatch {
  int64_t step = 0;
  int64_t global_samples = 0;  ///< Of all ranks together.
  /// This rank's positions in the global batch, one share a micro-step, in the order in which the samples lie in `batch`. As many on every
  /// rank; some may be empty (see pieces_of_rank).
  std::vector<Share> pieces;
  Batch batch;
  std::vector<int64_t> samples;  ///< Their indices in the data, in that order.
  std::vector<float> answers;    ///< LoaderOptions::answer's.
  double waited_seconds = 0;     ///< How long next() had to wait: the data part of a step's time.

  int64_t num_local_samples() const { return batch.num_samples; }
};

/// One consumer thread. The destructor stops the reader and joins it; an exception of the reader is thrown by next().
class Loader {
 public:
  Loader(std::shared_ptr<const DataSource> source, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The steps in order from first_step on. An exception of the source is thrown once the batches before it are handed out, and at every
  /// call from then on. Past end_step: Error(kFailed).
  LoadedBatch next();
  /// From `from_step` on the ranks' shares are proportional to `weights` (one a rank). Every rank makes the same call, though not at the
  /// same moment: which step is cut how depends on the arguments alone. Error(kBadInput) where from_step is below first_free_step(), or the
  /// weights are not one positive number a rank. Called by the consumer.
  void set_weights(int64_t from_step, std::vector<double> weights);
  /// The first step that can not have been read ahead: read_ahead + 1 after the one that next() gave last, whatever the reader has done.
  int64_t first_free_step() const;
  /// Optional: gives the memory of a batch back when it is no longer used, for a later one. Any thread.
  void recycle(Batch batch);
  int64_t steps_per_epoch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t steps_per_epoch_ = 0;
};

}  // namespace cohort

#pragma once
// Which samples belong to which step and rank: a pure function of (seed, step), the same for every layout and after every resume.

#include <cstdint>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/specs/batch_stage.h"

namespace cohort {

/// Half-open range of positions inside the global batch of a step.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// Splits `batch` positions over `num_ranks` into contiguous shares that differ by at most `granularity`; all but the last non-empty share
/// are multiples of `granularity` (ghost batches, micro-batches). The first ranks get remaining units, the last non-empty share the partial
/// unit. Error(kBadInput) for invalid arguments.
COHORT_API Share share_of_rank(int64_t batch, int rank, int num_ranks, int64_t granularity = 1);

/// One contiguous share per rank, in rank order, proportional to `weights` (positive, any scale): units of `granularity` by the method of
/// largest remainders, ties to the lower rank. The partial unit goes to the last rank with whole units, or to a later one that is further
/// below its quota. Equal weights give share_of_rank() exactly. Error(kBadInput) for invalid arguments.
COHORT_API std::vector<Share> shares_of_batch(int64_t batch, const std::vector<double>& weights, int64_t granularity = 1);

/// This rank's positions in each micro-step of a batch: the batch is split into `num_pieces` by share_of_rank(), each piece into the ranks'
/// shares. So micro-step k of all ranks together equals micro-step k of one process, and every rank has the same number of them: pieces
/// without any sample are dropped, pieces without a sample of this rank are empty shares.
COHORT_API std::vector<Share> pieces_of_rank(int64_t batch, int rank, const std::vector<double>& weights, int num_pieces,
                                             int64_t granularity = 1);

/// One thread at a time: it caches the order of one epoch.
class COHORT_API Sampler {
 public:
  enum class Batches {
    kWithinEpochs,  ///< The last step of an epoch may be smaller.
    kRunOn,         ///< Every step has global_batch samples (at most all), across epochs, as in tf.data and the paper.
  };
  /// Every epoch is a new permutation of [0, num_samples) by `seed`. Error(kBadInput) unless num_samples is 1 to 2^31 - 1 and global_batch,
  /// times the factors of `stages` (for kWithinEpochs only), at most num_samples.
  Sampler(int64_t num_samples, int64_t global_batch, uint64_t seed, bool shuffle = true, Batches batches = Batches::kWithinEpochs,
          const std::vector<BatchStage>& stages = {});

  int64_t steps_per_epoch() const { return steps_per_epoch_; }  ///< In the first stage; rounded up.
  /// Number of samples of all steps before `step`.
  int64_t samples_before(int64_t step) const;
  /// The first step after which `samples` samples were used.
  int64_t steps_until(int64_t samples) const;
  /// Number of samples in `step` (counted from 0 over all epochs).
  int64_t batch_at(int64_t step) const;
  /// Sample indices at positions [share.begin, share.end) of `step`.
  std::vector<int64_t> samples(int64_t step, Share share);

 private:
  /// Steps of one size: where the first of them begins.
  struct Stage {
    int64_t first_step, batch, epoch, offset;
  };
  struct Place {
    int64_t epoch, offset, batch;
  };
  Place place_of(int64_t step) const;
  const std::vector<int32_t>& order_of(int64_t epoch);
  /// Copies `count` samples of an epoch, beginning at position `first`.
  void copy(int64_t epoch, int64_t first, int64_t count, int64_t* out);

  int64_t num_samples_, global_batch_, steps_per_epoch_;
  uint64_t seed_;
  bool shuffle_;
  Batches batches_;
  std::vector<Stage> stages_;
  int64_t cached_epoch_ = -1;
  std::vector<int32_t> order_;
};

}  // namespace cohort

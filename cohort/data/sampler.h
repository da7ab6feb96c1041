#pragma once
// Which samples belong to which step and which rank. A pure function of (seed, step), so any rank of any layout, and a resumed run, can ask
// for any step; sample i of step s is the same for every number of workers.

#include <cstdint>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/specs/batch_schedule.h"

namespace cohort {

/// Half-open range of positions inside the global batch of a step.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// Splits `batch` positions over `num_ranks` in contiguous shares that differ by at most `granularity`; all but the last share with samples
/// are multiples of `granularity` (ghost batches, micro-batches). The first ranks get the units that are left over, the last rank with
/// samples the part of a unit. Shares may be empty. Wrong arguments: Error(kBadInput).
COHORT_API Share share_of_rank(int64_t batch, int rank, int num_ranks, int64_t granularity = 1);

/// One contiguous share a rank, in rank order, proportional to `weights` (positive, any scale): units of `granularity` by the method of
/// largest remainders, ties to the lower rank. What is left of the last unit comes last: the last rank with whole units gets it, or one
/// after it that is further below its quota. Equal weights give share_of_rank exactly. A pure function, the same on every machine.
/// Error(kBadInput) for wrong arguments.
COHORT_API std::vector<Share> shares_of_batch(int64_t batch, const std::vector<double>& weights, int64_t granularity = 1);

/// This rank's positions in each micro-step of a batch: the batch is cut into `num_pieces` as share_of_rank cuts it, each piece into the
/// ranks' shares. So micro-step k of all ranks together is micro-step k of one process, whatever the layout, and every rank runs the same
/// number of them: pieces that hold no sample of any rank are left out, one that holds none of this rank is an empty share.
COHORT_API std::vector<Share> pieces_of_rank(int64_t batch, int rank, const std::vector<double>& weights, int num_pieces,
                                             int64_t granularity = 1);

/// Thread-compatible: one thread at a time (it caches one epoch's order).
class COHORT_API Sampler {
 public:
  enum class Batches {
    kWithinEpochs,  ///< The last step of an epoch is smaller where global_batch does not divide.
    kRunOn,         ///< Every step has global_batch samples (of fewer, all), and an epoch may end within one, as in tf.data and the paper.
  };
  /// Every epoch is a fresh permutation of [0, num_samples) by `seed`. num_samples is 1 to 2^31 - 1, global_batch at least 1, and at most
  /// num_samples times the largest factor of `stages`, which go with kWithinEpochs alone: Error(kBadInput) otherwise.
  Sampler(int64_t num_samples, int64_t global_batch, uint64_t seed, bool shuffle = true, Batches batches = Batches::kWithinEpochs,
          const std::vector<BatchStage>& stages = {});

  int64_t steps_per_epoch() const { return steps_per_epoch_; }  ///< Of the first stage; rounded up.
  /// How many samples the steps before `step` had.
  int64_t samples_before(int64_t step) const;
  /// The first step after which that many samples were trained on.
  int64_t steps_until(int64_t samples) const;
  /// Number of samples in `step` (counted from 0 over all epochs).
  int64_t batch_at(int64_t step) const;
  /// Sample indices at positions [share.begin, share.end) of `step`.
  std::vector<int64_t> samples(int64_t step, Share share);

 private:
  /// Steps of one size, of kWithinEpochs: where in the data the first of them begins.
  struct Stage {
    int64_t first_step, batch, epoch, offset;
  };
  struct Place {
    int64_t epoch, offset, batch;
  };
  Place place_of(int64_t step) const;
  const std::vector<int32_t>& order_of(int64_t epoch);
  /// `count` samples of one epoch, from its `first` on.
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

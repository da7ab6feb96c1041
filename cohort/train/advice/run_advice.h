#pragma once
// What a run could have done otherwise: how long workers waited for the slowest, under which conditions other ways of waiting are judged,
// and what compressing gradients would cost and bring.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/plan/cost/compression_advice.h"
#include "cohort/plan/sync_advice.h"
#include "cohort/record/advice_records.h"
#include "cohort/record/async_record.h"
#include "cohort/record/step_records.h"

namespace cohort {

// How much of their time the workers of a data-parallel run wait for the slowest of them: with the shares that they have, and with equal
// ones. No LibTorch header.
//
//   ShareWaste waste(equal at the start);
//   every step:                 waste.add_step(metrics, samples of this rank);
//   where shares change:        waste.new_shares(from_step);
//   at the end, on all ranks:   std::optional<WasteRecord> told = waste.tell(group, global_batch, planned);

/// Totals of one rank over the steps of one set of shares.
struct ShareTimes {
  double steps = 0, samples = 0;
  double compute_seconds = 0;   ///< Forward and backward.
  double exchange_seconds = 0;  ///< Exposed: waiting for others among it.
  double step_seconds = 0;
};

/// Of equal shares, where a plan has forecast them.
struct PlannedWaste {
  double waste = kUnknown, step_seconds = kUnknown;
};

/// Share of the ranks' seconds that went into waiting for the slowest: what each waited beyond the rank that waited least, which had only
/// the exchange itself to wait for.
double measured_waste(const std::vector<ShareTimes>& ranks);

/// With equal shares of `global_batch` samples, from each rank's seconds for a sample: all wait for the slowest, and what a step takes
/// besides computing is what it takes the rank that waits least.
PlannedWaste waste_of_equal_shares(const std::vector<ShareTimes>& ranks, double global_batch);

class ShareWaste {
 public:
  /// Workers that are nearer to each other in speed than this, with equal shares, are not told of: a machine's noise is as large.
  static constexpr double kWorthTelling = 0.1;

  explicit ShareWaste(bool starts_equal) : starts_equal_(starts_equal) {}

  void add_step(const StepRecord& step, int64_t samples);
  void new_shares(int64_t from_step) { next_from_ = from_step; }

  /// None where shares were equal throughout and waste less than kWorthTelling, or where nothing was measured. Collective.
  std::optional<WasteRecord> tell(Group& group, int64_t global_batch, const PlannedWaste& planned) const;

 private:
  bool starts_equal_;
  int64_t next_from_ = -1;  ///< Other shares from this step on, counted from 1; -1: none are on their way.
  int64_t num_seen_ = 0;
  int num_changes_ = 0;
  ShareTimes first_, last_;  ///< Under the shares of the start, and under those of now.
};

/// What tell() says of the numbers of all ranks. `equal`: under equal shares, empty where there were none.
std::optional<WasteRecord> describe_waste(const std::vector<ShareTimes>& now, const std::vector<ShareTimes>& equal, bool changed,
                                          int64_t global_batch, const PlannedWaste& planned);

// The conditions that a run's own workers trained under, for advise_sync(). No LibTorch header.

/// Steps of a process below which nothing is said of its workers.
inline constexpr size_t kLeastStepsOfAdvice = 12;

/// Of ranks with equal shares, each with the seconds of every step that went into work of its own (data, forward and backward, its part of
/// the update); those of the first steps, which allocate, should not be among them. None with too few. Bytes and batch are the caller's to
/// fill in. Collective: the same for all.
std::optional<SyncConditions> conditions_of_ranks(Group& group, const std::vector<double>& own_seconds, const LinkEstimate& link);

/// Of workers that did not wait for one another, real or made up. None with too few pushes, or where workers of the clock die, as a pace
/// without deaths would say little. `samples_of_ticket`: of a full one.
std::optional<SyncConditions> conditions_of_workers(const AsyncRecord& record, double samples_of_ticket);

// Measures what compressing gradients would cost and bring here: what plan/cost/compression_advice.h reasons from.

/// Gradients that are exchanged together.
struct GradientBucket {
  CompressedBuffer buffer;
  int64_t num_elements = 0;
};
/// The parameters of a model, by shape and in order, one after the other in buckets of about `bucket_bytes`.
COHORT_PROGRAM_API std::vector<GradientBucket> gradient_buckets(const std::vector<std::vector<int64_t>>& shapes,
                                                                int64_t bucket_bytes = 8 << 20);

/// Measures each of none, fp16, bf16, int8, topk:0.01 and powersgd:4, and `in_use`, on made-up gradients, without a network: buckets up to
/// about 32 MiB, scaled to all of them.
std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks,
                                                 const std::string& in_use = "none");

/// All of it for the group at hand, whose link is measured here where it is not given. Collective; rank 0's step and the slowest rank's
/// compression count, and every rank gets the same advice.
COHORT_PROGRAM_API AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets,
                                               const std::optional<LinkEstimate>& measured_link = std::nullopt);

}  // namespace cohort

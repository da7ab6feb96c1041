#pragma once
// Measurements for the advice at the end of a run: how long workers waited for the slowest one, conditions under which advise_sync()
// compares sync modes, and the cost and gain of compressing gradients.

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

/// Totals of one rank over the steps with the same shares.
struct ShareTimes {
  double steps = 0, samples = 0;
  double compute_seconds = 0;   ///< Forward and backward.
  double exchange_seconds = 0;  ///< Exposed, including the wait for others.
  double step_seconds = 0;
};

/// A plan's forecast for equal shares.
struct PlannedWaste {
  double waste = kUnknown, step_seconds = kUnknown;
};

/// Part of the ranks' time that they waited for the slowest one: beyond the exchange of the rank that waited least.
double measured_waste(const std::vector<ShareTimes>& ranks);

/// The prediction for equal shares of `global_batch`, from each rank's seconds for a sample: all wait for the slowest, and the rest of a
/// step takes as long as on the rank that waits least.
PlannedWaste waste_of_equal_shares(const std::vector<ShareTimes>& ranks, double global_batch);

/// How much of their time the workers of a data-parallel run wait for the slowest one, with their shares and with equal ones.
class ShareWaste {
 public:
  /// Less waste than this, with equal shares, is not reported, since it may be noise.
  static constexpr double kMinReportedWaste = 0.1;

  explicit ShareWaste(bool starts_equal) : starts_equal_(starts_equal) {}

  void add_step(const StepRecord& step, int64_t samples);
  void new_shares(int64_t from_step) { next_from_ = from_step; }

  /// None if shares were always equal and waste less than kMinReportedWaste, or if nothing was measured. Collective.
  std::optional<WasteRecord> summary(Group& group, int64_t global_batch, const PlannedWaste& planned) const;

 private:
  bool starts_equal_;
  int64_t next_from_ = -1;  // Step, counted from 1, from which new shares hold; -1: none are pending.
  int64_t num_seen_ = 0;
  int num_changes_ = 0;
  ShareTimes first_, last_;  // Totals with the first shares, and with the present ones.
};

/// The record of all ranks' totals. `equal`: those with equal shares; empty if there were none.
std::optional<WasteRecord> describe_waste(const std::vector<ShareTimes>& now, const std::vector<ShareTimes>& equal, bool changed,
                                          int64_t global_batch, const PlannedWaste& planned);

/// Conditions are measured from at least this many steps.
inline constexpr size_t kLeastStepsOfAdvice = 12;

/// The conditions of ranks with equal shares, for advise_sync(), from each rank's seconds of a step without exchange (and without the first
/// steps, which allocate). None with too few steps. The caller fills in bytes and batch. Collective; the same for all.
std::optional<SyncConditions> conditions_of_ranks(Group& group, const std::vector<double>& own_seconds, const LinkEstimate& link);

/// The conditions of asynchronous workers, real or simulated. None with too few pushes, or where simulated workers fail, since the pace
/// does not model failures. `samples_per_item`: of a full one.
std::optional<SyncConditions> conditions_of_workers(const AsyncRecord& record, double samples_per_item);

/// Gradients that are exchanged together.
struct GradientBucket {
  CompressedBuffer buffer;
  int64_t num_elements = 0;
};
/// Buckets of about `bucket_bytes` for parameters of these shapes, in order.
COHORT_PROGRAM_API std::vector<GradientBucket> gradient_buckets(const std::vector<std::vector<int64_t>>& shapes,
                                                                int64_t bucket_bytes = 8 << 20);

/// Measures none, fp16, bf16, int8, topk:0.01, powersgd:4 and `in_use` on synthetic gradients, without a network: buckets up to about 32
/// MiB, scaled to all of them.
std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks,
                                                 const std::string& in_use = "none");

/// Measures compression, and the link if it is not given, and advises. Collective; uses rank 0's step and the slowest rank's compression,
/// and returns the same advice on every rank.
COHORT_PROGRAM_API AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets,
                                               const std::optional<LinkEstimate>& measured_link = std::nullopt);

}  // namespace cohort

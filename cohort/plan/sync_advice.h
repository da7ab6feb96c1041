#pragma once
// Advice on sync=: the pace of each mode on the virtual clock against the samples that lateness costs. Torch-free;
// the clock is driven by async/simulated/clock_only.h.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/job/specs/virtual_spec.h"
#include "cohort/record/advice_records.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

/// Overhead per work item of an asynchronous real worker besides compute and bytes: three messages and their wake-ups.
inline constexpr double kWorkItemSeconds = 3e-4;

/// The conditions that decide the pace of data-parallel training.
struct SyncConditions {
  VirtualSpec clock;  ///< Speeds, pauses and link; compute_seconds is for an equal share of a step at speed 1.
  int64_t global_batch = 0, granularity = 1;
  int64_t pull_bytes = 0, push_bytes = 0;  ///< Bytes of the model, and of its gradients.
  double work_item_seconds = 0;            ///< kWorkItemSeconds for real workers; 0: that of the virtual clock.
  double step_seconds = 0;                 ///< Measured or forecast with sync=step, where exchanges overlap backward; 0: from the clock.
};

/// Compute times of one rank over the steps of a run.
struct ComputeTimes {
  double median_seconds = 0;                 ///< Median per step.
  double all_seconds = 0;                    ///< Sum over all steps.
  double num_pauses = 0, pause_seconds = 0;  ///< Number of steps over 1.5 times the median, and the excess seconds.
};
ComputeTimes compute_times(const std::vector<double>& seconds_of_steps);

/// The virtual clock of such ranks with equal shares: a rank a tenth slower than the fastest becomes slow=, at least three long steps
/// become pauses=. A link that was not measured has no latency and unlimited bandwidth.
VirtualSpec clock_of(const std::vector<ComputeTimes>& ranks, const LinkEstimate& link);

struct SyncPace {
  double samples_per_second = 0;
  double mean_late_steps = 0;  ///< Staleness: steps between pull and push of a worker.
};

/// The row with the least upper end of the time; it must be below an earlier row's by more than noise (plan/explain.h). `rows` begins with
/// step.
COHORT_PROGRAM_API const SyncAdviceRecord::Row& best_row(const std::vector<SyncAdviceRecord::Row>& rows);

/// The pace of a sync mode under these conditions.
using PaceOfSync = std::function<SyncPace(const SyncMode&, const SyncConditions&)>;

/// All modes that are possible under these conditions, and the one that reaches a goal first, with the reason in a sentence. `now` is the
/// sync in use; empty: none yet.
SyncAdviceRecord advise_sync(const SyncConditions& conditions, const std::string& now, const PaceOfSync& pace_of);

}  // namespace cohort

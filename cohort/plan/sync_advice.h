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

/// What a ticket of a worker that waits for nobody costs beside computing and bytes, in real workers: three messages and their wake-ups.
inline constexpr double kTicketSeconds = 3e-4;

/// The conditions that decide the pace of data-parallel training.
struct SyncConditions {
  VirtualSpec clock;  ///< Speeds, pauses and link; compute_seconds are those of a worker's equal share of a step at speed 1.
  int64_t global_batch = 0, granularity = 1;
  int64_t pull_bytes = 0, push_bytes = 0;  ///< Bytes of the model, and of its gradients.
  double ticket_seconds = 0;               ///< kTicketSeconds, of workers that are real; 0: as the virtual clock has it.
  double step_seconds = 0;                 ///< Measured with sync=step, or forecast: exchanges hide behind backward there. 0: the clock's.
};

/// How fast one rank computed its share, over the steps of a run.
struct ComputeTimes {
  double median_seconds = 0;                 ///< Median per step.
  double all_seconds = 0;                    ///< Sum over all steps.
  double num_pauses = 0, pause_seconds = 0;  ///< Steps that took over 1.5 times the median, and what they took beyond it.
};
ComputeTimes compute_times(const std::vector<double>& seconds_of_steps);

/// The clock that such ranks, with equal shares, are workers of: who is a tenth slower than the fastest is slow=; steps that stand out, at
/// least three of them, are pauses=. A link that was not measured has no latency and no end.
VirtualSpec clock_of(const std::vector<ComputeTimes>& ranks, const LinkEstimate& link);

struct SyncPace {
  double samples_per_second = 0;
  double mean_late_steps = 0;  ///< Between a worker's pull and its push, in steps.
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

#pragma once
// Simulates the speed and staleness of a sync mode under the virtual clock with workers that compute nothing.

#include <cstdint>

#include "cohort/job/specs/sync_mode.h"
#include "cohort/plan/sync_advice.h"

namespace cohort {

/// Number of simulated steps: within bounds, enough for twenty pauses per worker.
int64_t num_steps_of_pace(const SyncConditions& conditions);

/// What `train --virtual` with that clock, layout and seed 1 measures after as many steps, for step, async, stale:K with K above 0, local:H
/// and diloco:H. Takes milliseconds for a few workers. Error(kBadInput) for another mode, or if a worker would have no samples.
SyncPace clock_only_pace(const SyncMode& mode, const SyncConditions& conditions);

}  // namespace cohort

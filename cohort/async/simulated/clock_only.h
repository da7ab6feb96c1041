#pragma once
// The virtual clock with workers that compute nothing: how fast a way of waiting for one another goes, and how late its gradients come.

#include <cstdint>

#include "cohort/job/specs/sync_mode.h"
#include "cohort/plan/sync_advice.h"

namespace cohort {

/// Steps of the clock: so many that pauses are met twenty times a worker, within bounds.
int64_t num_steps_of_pace(const SyncConditions& conditions);

/// Of step, async, stale:K with K above 0, local:H and diloco:H: what `train --virtual` of that clock, layout and seed 1 measures, after as
/// many steps. Milliseconds for a few workers. Error(kBadInput) for another mode, or where a worker would have no samples.
SyncPace clock_only_pace(const SyncMode& mode, const SyncConditions& conditions);

}  // namespace cohort

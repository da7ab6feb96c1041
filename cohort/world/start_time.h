#pragma once
// How long ago the user started this job.

#include "cohort/world/world.h"

namespace cohort {

/// Seconds since the process that the user started (this one, or the launcher that forked it) began, loading of its libraries included; to
/// 10 ms, the kernel's clock tick. -1 where /proc does not say.
double seconds_since_command(const World& world);

}  // namespace cohort

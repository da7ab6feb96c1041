#pragma once
// Settings that contradict each other, found before any rank is started: one line and not one a rank.

#include "cohort/base/config.h"
#include "cohort/base/layout.h"

namespace cohort {

/// Error(kBadInput). What depends on the model or the machine is found by the ranks.
void check_run(const Config& config, const Layout& layout, int num_ranks);

}  // namespace cohort

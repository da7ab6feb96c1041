#pragma once
// Proves that a schedule is one: every action once, dependencies met, transfers matched, no deadlock, and how much it keeps. Torch-free.

#include <vector>

#include "cohort/schedule/schedule.h"

namespace cohort {

struct ScheduleFacts {
  std::vector<int> peak_stash;        ///< One a rank: most (stage, micro-batch) pairs whose activations are kept at once (forward done,
                                      ///< backward not; with split backward until the weight part is done).
  std::vector<int> peak_input_stash;  ///< The same until the input part is done.
  int num_messages = 0;               ///< Transfers.
};

/// Error(kBadInput) that names rank, position and action of the first thing that is wrong; else facts. Checks: every (stage, micro-batch)
/// has one forward, and one backward or one input and one weight part, on one rank, in that order; what an action needs from its own rank
/// is done before it; every edge between ranks has its four transfers, sends match receives and come in the same order for every pair of
/// ranks; running all ranks at once, each waiting at receives, comes to an end. Schedules without any transfer are checked as
/// add_transfers() would complete them.
ScheduleFacts check_schedule(const Schedule& schedule);

}  // namespace cohort

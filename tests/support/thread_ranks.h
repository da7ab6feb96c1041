#pragma once
// Ranks as threads of one process: the harness of unit tests. Fast (a group starts in milliseconds) and visible to sanitizers.

#include <functional>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// Runs `body` in `num_ranks` threads, each with its own Group over a store in memory. The first exception (in rank order) is thrown again
/// after all threads have ended.
void run_thread_ranks(int num_ranks, const std::function<void(Group&)>& body,
                      const GroupOptions& options = {.backend = "auto", .timeout_seconds = 20});

/// The last calls of a group, a line each.
std::string recent_calls(const Group& group);

}  // namespace cohort

#pragma once
// What `cohort train` prints after a run that had too little memory. Internal to the command line.

#include <string>

#include "cohort/job/job.h"

namespace cohort {

/// Whether a job that failed with this line ran out of memory: --memory-limit, a failed allocation, or the kernel.
bool is_memory_death(const std::string& failure);

/// Prints the ladder for this job's model, data, batch, workers and layout: runs `cohort plan --ladder` for at most kMostSeconds in a
/// process that the kernel kills first if memory is short. If that is not possible, and under another launcher, prints the command. Never
/// throws.
void advise_on_memory(const Job& job, bool can_measure);

}  // namespace cohort

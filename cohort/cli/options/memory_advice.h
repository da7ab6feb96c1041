#pragma once
// What `cohort train` says where a run had too little memory. Internal to this folder.

#include <string>

#include "cohort/job/job.h"

namespace cohort {

/// Whether a job that failed with this line died of memory: of --memory-limit, of an allocation that was refused, or by the kernel.
bool is_memory_death(const std::string& failure);

/// Prints the ladder for this job's model, data, batch, workers and layout: `cohort plan --ladder` in a process of its own, which dies
/// before any other where memory is short, for at most kMostSeconds. Where that cannot be done, and under another launcher, one line that
/// says what to type. Never fails.
void advise_on_memory(const Job& job, bool can_measure);

}  // namespace cohort

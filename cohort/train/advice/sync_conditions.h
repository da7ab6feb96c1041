#pragma once
// The conditions that a run's own workers trained under, for advise_sync(). No LibTorch header.

#include <optional>
#include <vector>

#include "cohort/plan/sync_advice.h"
#include "cohort/record/async_record.h"

namespace cohort {

class Group;

/// Steps of a process below which nothing is said of its workers.
inline constexpr size_t kLeastStepsOfAdvice = 12;

/// Of ranks with equal shares, each with the seconds of every step that went into work of its own (data, forward and backward, its part of
/// the update); those of the first steps, which allocate, should not be among them. None with too few. Bytes and batch are the caller's to
/// fill in. Collective: the same for all.
std::optional<SyncConditions> conditions_of_ranks(Group& group, const std::vector<double>& own_seconds, const LinkEstimate& link);

/// Of workers that did not wait for one another, real or made up. None with too few pushes, or where workers of the clock die, as a pace
/// without deaths would say little. `samples_of_ticket`: of a full one.
std::optional<SyncConditions> conditions_of_workers(const AsyncRecord& record, double samples_of_ticket);

}  // namespace cohort

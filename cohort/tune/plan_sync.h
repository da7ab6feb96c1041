#pragma once
// The sync mode that suits the workers of a plan.

#include <optional>

#include "cohort/plan/plan.h"
#include "cohort/record/advice_records.h"

namespace cohort {

/// Advice for a plan of several whole replicas without compression; unset for others.
std::optional<SyncAdviceRecord> sync_of(const Plan& plan);

}  // namespace cohort

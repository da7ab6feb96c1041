#pragma once
// The sync mode that suits the workers of a plan.

#include <optional>

#include "cohort/plan/plan.h"
#include "cohort/record/advice_records.h"

namespace cohort {

/// Advice for a plan of several whole replicas without compression; unset for others.
std::optional<SyncAdviceRecord> advise_sync_for(const Plan& plan);

}  // namespace cohort

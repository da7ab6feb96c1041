#pragma once
// `cohort plan`: which way of waiting for one another suits the workers of a plan. Internal to this folder.

#include <optional>

#include "cohort/plan/plan.h"
#include "cohort/record/advice_records.h"

namespace cohort {

/// None where the plan is not of several whole replicas, whose gradients travel as they are.
std::optional<SyncAdviceRecord> sync_of(const Plan& plan);

}  // namespace cohort

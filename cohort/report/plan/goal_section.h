#pragma once
// The time to a goal by number of workers, on a plan's page. Internal to this folder.

#include <string>

#include "cohort/plan/plan.h"

namespace cohort::report {

/// Table and chart; "" where the plan is for another objective. mark_shapes() must stand on the page before.
std::string goal_section(const Plan& plan);

}  // namespace cohort::report

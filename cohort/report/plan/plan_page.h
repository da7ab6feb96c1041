#pragma once
// A plan as one self-contained HTML file: workers, the pipeline's timeline, time against memory, alternatives and what would change it.

#include <string>
#include <vector>

#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort::report {

/// Written by rename. Error(kBadInput) for an unwritable path.
void write_plan_page(const std::string& path, const Plan& plan, const std::vector<WhatIf>& changes);

}  // namespace cohort::report

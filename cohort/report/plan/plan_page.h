#pragma once
// A plan as one HTML file without network: who holds what, the pipeline's timeline, time against memory, what lost and what would change
// it.

#include <string>
#include <vector>

#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort::report {

/// Written by rename. Error(kBadInput) for a place that can not be written.
void write_plan_page(const std::string& path, const Plan& plan, const std::vector<WhatIf>& changes);

}  // namespace cohort::report

#pragma once
// Reports a rank that fails before it has met the others.

#include <string>

#include "cohort/base/error.h"
#include "cohort/world/world.h"

namespace cohort {

/// Reports the error to all ranks that arrive within some seconds, whose wait then fails with it. Where rank 0 hosts the store it waits for
/// them. Without effect where this process has begun to meet them, or where Cohort's launcher will end the other ranks.
void report_refusal(const World& world, ErrorCode code, const std::string& text) noexcept;

}  // namespace cohort

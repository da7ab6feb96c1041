#pragma once
// A rank that does not come: the others wait for it where they meet, so it says so there.

#include <string>

#include "cohort/base/error.h"
#include "cohort/world/world.h"

namespace cohort {

/// For a rank that ends before it met the others: tells all that come within some seconds, whose wait ends with this error. Where rank 0
/// hosts the store it waits for them. Nothing where this process has begun to meet them, or ranks have a launcher of ours, which ends them.
void tell_refusal(const World& world, ErrorCode code, const std::string& text) noexcept;

}  // namespace cohort

#pragma once
// JSON values keep the order in which their keys were set: that of the documentation.
// Include this in .cpp files; headers take <nlohmann/json_fwd.hpp> and base/text/json_fwd.h.

#include <cmath>
#include <nlohmann/json.hpp>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// The number, or null where it is not finite: JSON has no such numbers.
inline Json finite_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace cohort

#pragma once
// The forecast of a plan as a run records it. Torch-free.

#include <optional>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/forecast_record.h"

namespace cohort {

/// Of what plan.json holds (docs/formats/plan.md); nothing where it has no forecast, as a bare layout has none. `where` names the file in
/// errors. Error(kBadInput) for values of the wrong kind.
std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where);

}  // namespace cohort

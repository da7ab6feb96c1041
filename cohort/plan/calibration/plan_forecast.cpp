#include "cohort/plan/calibration/plan_forecast.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/record/run_event.h"

namespace cohort {

std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where) {
  if (!plan.is_object() || !plan.contains("predicted_step_seconds")) return std::nullopt;
  Json event{{"event", ForecastRecord::kEvent}, {"source", source}};
  for (const auto& [ours, theirs] : {std::pair("predicted_step_seconds", "predicted_step_seconds"), std::pair("interval", "interval"),
                                     std::pair("interval_from", "interval_from"),
                                     std::pair("predicted_peak_memory_bytes", "peak_memory_bytes"), std::pair("workers", "workers")})
    if (plan.contains(theirs)) event[ours] = plan[theirs];
  if (plan.contains("uneven") && plan["uneven"].is_object())
    for (const char* key : {"predicted_equal_waste", "predicted_equal_step_seconds"})
      if (plan["uneven"].contains(key)) event[key] = plan["uneven"][key];
  ForecastRecord record = record_from<ForecastRecord>(event, where);
  if (!(record.predicted_step_seconds > 0) || !std::isfinite(record.predicted_step_seconds))
    fail(ErrorCode::kBadInput, where, ": 'predicted_step_seconds' is no number above 0");
  if (!record.interval.empty() && !record.has_interval())
    fail(ErrorCode::kBadInput, where, ": 'interval' has ", record.interval.size(), " numbers; expected two");
  return record;
}

}  // namespace cohort

#include "cohort/plan/calibration/plan_forecast.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/record/run_event.h"

namespace cohort {
namespace {

void check_seconds(double value, const char* key, const std::string& where) {
  if (!std::isnan(value) && (!(value > 0) || !std::isfinite(value)))
    fail(ErrorCode::kBadInput, where, ": '", key, "' is ", value, "; expected a number above 0");
}

/// What plans of devices that are not equally fast say.
void check_uneven(const Json& plan, const std::string& where) {
  const std::string place = where + ": 'uneven'";
  const JsonLine its(plan["uneven"], place);
  for (const char* key : {"predicted_step_seconds", "predicted_equal_step_seconds"}) check_seconds(its.number(key), key, place);
  for (const char* key : {"predicted_waste", "predicted_equal_waste"})
    if (const double waste = its.number(key); waste < 0 || waste > 1)
      fail(ErrorCode::kBadInput, place, ": '", key, "' is ", waste, "; expected a share from 0 to 1");
  const std::vector<double> shares = its.numbers("shares");
  double sum = 0;
  for (const double share : shares) {
    if (!(share > 0 && share <= 1)) fail(ErrorCode::kBadInput, place, ": 'shares' has ", share, "; expected shares above 0, up to 1");
    sum += share;
  }
  if (!shares.empty() && !(std::abs(sum - 1) < 1e-6))
    fail(ErrorCode::kBadInput, place, ": 'shares' add up to ", sum, "; expected 1, one share a rank");
}

}  // namespace

std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where) {
  if (!plan.is_object() || !plan.contains("predicted_step_seconds")) return std::nullopt;
  JsonLine(plan, where).count("peak_memory_bytes");  // Refused under the name that it has there.
  Json event{{"event", ForecastRecord::kEvent}, {"source", source}};
  for (const auto& [ours, theirs] : {std::pair("predicted_step_seconds", "predicted_step_seconds"), std::pair("interval", "interval"),
                                     std::pair("interval_from", "interval_from"),
                                     std::pair("predicted_peak_memory_bytes", "peak_memory_bytes"), std::pair("workers", "workers")})
    if (plan.contains(theirs)) event[ours] = plan[theirs];
  if (plan.contains("uneven") && !plan["uneven"].is_null()) {
    check_uneven(plan, where);
    for (const char* key : {"predicted_equal_waste", "predicted_equal_step_seconds"})
      if (plan["uneven"].contains(key)) event[key] = plan["uneven"][key];
  }
  ForecastRecord record = record_from<ForecastRecord>(event, where);
  if (!(record.predicted_step_seconds > 0) || !std::isfinite(record.predicted_step_seconds))
    fail(ErrorCode::kBadInput, where, ": 'predicted_step_seconds' is no number above 0");
  if (!record.interval.empty() && !record.has_interval())
    fail(ErrorCode::kBadInput, where, ": 'interval' has ", record.interval.size(), " numbers; expected two");
  if (record.has_interval() && !(record.interval[0] >= 0 && record.interval[0] <= record.interval[1] && std::isfinite(record.interval[1])))
    fail(ErrorCode::kBadInput, where, ": 'interval' is ", record.interval[0], " to ", record.interval[1], "; expected two rising numbers");
  return record;
}

}  // namespace cohort

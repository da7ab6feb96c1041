#pragma once
// Trials as one line of JSON: between ranks, and in files of trials that ended but are not decided. Doubles survive bit for bit; numbers
// that are not finite become null and come back as NaN.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/search/batch_queue.h"
#include "cohort/study/search/trial_runner.h"

namespace cohort::study {

Json to_json(const Trial& trial);
Json to_json(const TrialOrder& order);
Json to_json(const TrialBound& bound);
/// Error(kBadInput) naming `what` for anything that is not what to_json writes.
Trial trial_from_json(const Json& json, const std::string& what);
TrialOrder order_from_json(const Json& json, const std::string& what);
TrialBound bound_from_json(const Json& json, const std::string& what);

}  // namespace cohort::study

#include "cohort/job/specs/remedy.h"

#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kLeastFactor = 1e-9;

}  // namespace

double parse_remedy(const std::string& text) {
  if (text.empty()) return 1;
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (name != "rate") fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": no remedy '", name, "'; there is rate:FACTOR");
  const auto factor = colon == std::string::npos ? std::nullopt : parse_number(text.substr(colon + 1));
  if (!factor || !(*factor >= kLeastFactor) || *factor > 1)
    fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": expected rate:FACTOR with FACTOR from ", kLeastFactor, " to 1");
  return *factor;
}

}  // namespace cohort

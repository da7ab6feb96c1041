#include "cohort/job/specs/shares.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr const char* kForms = "; it is equal, auto, or one positive number a rank as in 3:1:1";

}  // namespace

bool Shares::are_equal() const { return std::adjacent_find(weights.begin(), weights.end(), std::not_equal_to<>()) == weights.end(); }

std::vector<double> Shares::of(int num_ranks) const {
  if (weights.empty()) return std::vector<double>(static_cast<size_t>(num_ranks), 1.0);
  if (std::ssize(weights) != num_ranks)
    fail(ErrorCode::kBadInput, name_settings("--shares: "), weights.size(), " numbers for ", num_ranks, " ranks", kForms);
  return weights;
}

Shares parse_shares(const std::string& text) {
  if (text == "equal" || text == "auto") return {text == "auto", {}};
  Shares shares;
  for (const std::string& part : split(text, ':')) {
    const auto number = parse_number(part);
    if (!number)
      fail(ErrorCode::kBadInput, name_settings("--shares "), text, ": '", part, "' is no number", did_you_mean(part, {"equal", "auto"}),
           kForms);
    if (!(*number > 0) || !std::isfinite(*number))
      fail(ErrorCode::kBadInput, name_settings("--shares "), text, ": ", part, " is no positive number", kForms);
    shares.weights.push_back(*number);
  }
  if (shares.weights.empty()) fail(ErrorCode::kBadInput, name_settings("--shares says nothing"), kForms);
  return shares;
}

}  // namespace cohort

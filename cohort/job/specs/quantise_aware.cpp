#include "cohort/job/specs/quantise_aware.h"

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kDefaultGroup = 64, kLargestGroup = 1'000'000;

}  // namespace

std::optional<QuantiseAware> parse_quantise_aware(const std::string& text) {
  if (text.empty() || text == "none") return {};
  if (text == "8") return QuantiseAware{.bits = 8, .group = 0};
  if (text == "4") return QuantiseAware{.bits = 4, .group = kDefaultGroup};
  const auto group = text.starts_with("4:") ? parse_integer(text.substr(2)) : std::nullopt;
  if (!group || *group < 1 || *group > kLargestGroup)
    fail(ErrorCode::kBadInput, name_settings("--quantize-aware "), quote_text(text),
         ": expected 8 (int8 weights and inputs), 4 or 4:GROUP (weights in 4 bits, GROUP of a row with one scale, as 4:64), or none");
  return QuantiseAware{.bits = 4, .group = *group};
}

}  // namespace cohort

#include "cohort/plan/profile/profile_codings.h"

#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/job/specs/small_specs.h"

namespace cohort {

void check_codings(const ModelProfile& profile, const std::string& where) {
  std::set<std::string> devices;
  for (const ProfilePoint& point : profile.points) devices.insert(point.device);
  std::set<std::pair<std::string, std::string>> seen;
  for (size_t i = 0; i < profile.codings.size(); ++i) {
    const CodingCost& its = profile.codings[i];
    const std::string place = concat(where, ": codings[", i, "]: ");
    try {
      parse_compression(its.compress);
    } catch (const Error& error) {
      fail(ErrorCode::kBadInput, place, error.what());
    }
    if (its.compress == "none") fail(ErrorCode::kBadInput, place, "'compress' is none, which costs nothing; leave the entry out");
    // A point of any device does for all; so does a coding.
    if (!its.device.empty() && !devices.contains("") && !devices.contains(its.device))
      fail(ErrorCode::kBadInput, place, "'device' is ", quote_text(its.device), ", which no point has; give the name that the points have");
    if (!seen.emplace(its.device, its.compress).second)
      fail(ErrorCode::kBadInput, place, "another entry is for device ", quote_text(its.device), " and ", its.compress, ", too");
  }
}

}  // namespace cohort

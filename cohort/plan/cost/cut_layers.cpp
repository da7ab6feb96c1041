#include "cohort/plan/cost/cut_layers.h"

#include "cohort/base/fail.h"
#include "cohort/schedule/scheduler.h"

namespace cohort {

StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of) {
  if (stage_of.size() != profile.layers.size())
    fail(ErrorCode::kBadInput, "stages for ", stage_of.size(), " layers, and the profile has ", profile.layers.size());
  std::vector<std::pair<int, int>> tied;
  for (const auto& [owner, user] : profile.tied) {
    const std::pair<int, int> stages{stage_of[static_cast<size_t>(owner)], stage_of[static_cast<size_t>(user)]};
    if (stages.first > stages.second)
      fail(ErrorCode::kBadInput, "stages: the weight that '", profile.layers[static_cast<size_t>(owner)].name, "' of stage ", stages.first,
           " shares is used by '", profile.layers[static_cast<size_t>(user)].name, "' of the earlier stage ", stages.second,
           "; put the two into one stage");
    if (stages.first != stages.second) tied.push_back(stages);
  }
  return cut_layers(profile.edges, tied, std::move(stage_of), [&](int layer) { return profile.layers[static_cast<size_t>(layer)].name; });
}

}  // namespace cohort

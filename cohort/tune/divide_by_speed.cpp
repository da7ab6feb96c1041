#include "cohort/tune/divide_by_speed.h"

#include <cmath>
#include <string>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/tune/speed_classes.h"

namespace cohort {
namespace {

void say_speed(DeviceKind& device, double times_slower) {
  if (times_slower > SpeedClasses::kSlower)
    device.source += concat("; takes ", std::round(10 * times_slower) / 10, " times as long as the fastest rank");
}

}  // namespace

void divide_by_speed(ModelProfile& profile, const std::vector<std::vector<double>>& whole_seconds, Group& group) {
  std::vector<std::vector<std::vector<double>>> seconds;
  for (const std::string& text : group.all_gather_text(Json(whole_seconds).dump(), "the ranks' seconds"))
    seconds.push_back(Json::parse(text).get<std::vector<std::vector<double>>>());
  const SpeedClasses speeds(seconds);
  const int mine = speeds.of_rank()[static_cast<size_t>(group.rank())];
  std::vector<std::string> others;
  if (speeds.num_classes() > 1) {
    const bool speaks = mine > 0 && speeds.rank_of(mine) == group.rank();
    others = group.all_gather_text(speaks ? to_json(profile).dump() : "", "profiles of ranks of another speed");
  }
  if (group.rank() > 0) {
    profile.points.clear();
    return;
  }
  Cluster& machine = profile.measured_on.front();
  const std::string name = machine.devices.front().name;
  if (speeds.num_classes() > 1) say_speed(machine.devices.front(), speeds.times_slower(0));
  for (int one = 1; one < speeds.num_classes(); ++one) {
    ModelProfile other = model_profile_from_json(Json::parse(others[static_cast<size_t>(speeds.rank_of(one))]), "what a rank measured");
    DeviceKind device = std::move(other.measured_on.front().devices.front());
    device.name = concat(name, "-speed-", one + 1);
    say_speed(device, speeds.times_slower(one));
    for (ProfilePoint& point : other.points) {
      point.device = device.name;
      profile.points.push_back(std::move(point));
    }
    for (CodingCost& coding : other.codings) {
      coding.device = device.name;
      profile.codings.push_back(std::move(coding));
    }
    machine.devices.push_back(std::move(device));
  }
  if (speeds.num_classes() > 1) machine.hosts.front().mixed = speeds.of_rank();
}

}  // namespace cohort

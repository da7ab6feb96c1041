#pragma once
// Ranks of one machine that are not equally fast become kinds of device, so that a plan can give them other shares or stages.

#include <vector>

#include "cohort/comm/group.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

/// `profile`: what this rank measured, on a cluster of one kind of device; `whole_seconds`: of one pass over the model by size and round,
/// as many on every rank. Rank 0's gets a kind of device, with the points of one such rank, for each further speed (speed_classes.h), and
/// its host says which rank has which; the others' lose their points. Collective.
void divide_by_speed(ModelProfile& profile, const std::vector<std::vector<double>>& whole_seconds, Group& group);

}  // namespace cohort

#pragma once
// Links, memory and rates of the machine that this group's ranks are on.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/plan/profile/cluster.h"

namespace cohort {

struct MachineToMeasure {
  std::string device;          ///< Name for the kind of device that a rank is.
  int64_t reserved_bytes = 0;  ///< What a rank has resident beside its tensors; at most half of its memory counts.
  std::vector<std::string> precisions;
};

/// One host with a device a rank. Collective; each rank gets what it measured itself.
Cluster measure_machine(Group& group, const MachineToMeasure& what);

}  // namespace cohort

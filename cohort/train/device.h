#pragma once
// Where a rank computes, and how it exchanges what lies there.

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// "cpu", or "cuda": the device of this rank, ranks of a host taking them in turn; it becomes this thread's current one. Error(kBadInput)
/// with what to do where there is none.
c10::Device device_of_rank(const std::string& name, int local_rank);

/// For GroupOptions: NCCL's link for a GPU; null for the CPU.
std::shared_ptr<const DeviceLink> link_of_device(c10::Device device);

}  // namespace cohort

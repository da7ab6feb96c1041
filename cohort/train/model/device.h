#pragma once
// Where a rank computes, and how it exchanges what lies there.

#include <c10/core/Device.h>

#include <memory>

#include "cohort/comm/group.h"
#include "cohort/job/specs/devices.h"
#include "cohort/world/world.h"

namespace cohort {

/// What can be said before ranks are forked, touching no GPU: Error(kBadInput) where GPUs are asked for and this LibTorch has none.
void check_devices(const Devices& devices);

/// Of this rank; a GPU becomes this thread's current one. Error(kBadInput) with what to do where there is none, or not that one.
c10::Device device_of_rank(const Devices& devices, const World& world);

/// For GroupOptions. Null where the whole job is on the CPU; NCCL's link for a GPU. A rank on the CPU beside others on GPUs gets a link
/// that says so, for all ranks decide together how they exchange: such a job does it in the hosts' memory.
std::shared_ptr<const DeviceLink> link_of_device(const Devices& devices, c10::Device device);

}  // namespace cohort

#pragma once
// Where a rank computes.

#include <c10/core/Device.h>

#include <string>

namespace cohort {

/// "cpu", or "cuda": the device of this rank, ranks of a host taking them in turn. Error(kBadInput) with what to do where there is none.
c10::Device device_of_rank(const std::string& name, int local_rank);

}  // namespace cohort

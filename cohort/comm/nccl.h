#pragma once
// NCCL's collectives on GPUs, where LibTorch was built with them. nccl.cpp is the only file with names of CUDA.

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// "" where this build has NCCL, else the reason and what to do instead. Touches no GPU, so that ranks may still be forked.
std::string why_no_nccl();

/// For GroupOptions: tensors on `device` over NCCL, each rank with a GPU of its own; where that cannot be, the link says why. NCCL connects
/// in the first exchange, which has no time-out of ours. wait() of its works blocks the caller and throws in it: no thread ends the process
/// (sets TORCH_NCCL_BLOCKING_WAIT where it is not set). Making the backend fails with Error(kEnvironment) where there is no NCCL or no GPU.
std::shared_ptr<const DeviceLink> make_nccl_link(c10::Device device);

}  // namespace cohort

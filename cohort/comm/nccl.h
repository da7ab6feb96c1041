#pragma once
// NCCL's collectives on GPUs, where the LibTorch that Cohort is built against has them.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace cohort {

/// "" where this build can use NCCL; else why not, and what to do instead.
std::string why_no_nccl();

/// A NCCL backend for `size` ranks, each with a GPU of its own, that meet over `store`. Tensors must be on the GPU that is current in the
/// calling thread. NCCL connects in the first exchange; each exchange ends within the time-out. Error(kEnvironment) with why_no_nccl()
/// where there is no NCCL or no GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double timeout_seconds);

}  // namespace cohort

#include "cohort/comm/nccl.h"

#include "cohort/base/fail.h"

// LibTorch's CMake defines USE_C10D_NCCL where its c10d has NCCL, whose header needs those of NCCL and CUDA.
#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>)
#define COHORT_HAS_NCCL 1
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#define COHORT_HAS_NCCL 0
#endif

namespace cohort {
namespace {

std::string instead() { return name_settings("; use --backend gloo, over which ranks may also share one GPU"); }

}  // namespace

#if COHORT_HAS_NCCL

namespace {

std::string why_no_gpu() { return c10::cuda::device_count() > 0 ? "" : concat("NCCL needs a GPU, and this process sees none", instead()); }

/// Equal for two processes exactly where they use the same GPU of the same machine, containers included, as NCCL compares them.
std::string identity_of(c10::Device device) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const cudaDeviceProp* const gpu = at::cuda::getDeviceProperties(device.index());
  return concat(gpu->name, " at PCI ", gpu->pciDomainID, ":", gpu->pciBusID, ":", gpu->pciDeviceID, " of machine ", boot);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double timeout_seconds) {
  if (const std::string why = why_no_gpu(); !why.empty()) fail(ErrorCode::kEnvironment, why);
  // Otherwise a watchdog thread of c10d ends the process at a time-out, before the missing rank could be reported.
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, std::move(options));
}

}  // namespace

std::string why_no_nccl() { return ""; }

std::shared_ptr<const DeviceLink> make_nccl_link(c10::Device device) {
  auto link = std::make_shared<DeviceLink>();
  link->device = device;
  link->why_not = why_no_gpu();
  if (link->why_not.empty()) link->identity = identity_of(device);
  link->make = make_nccl_backend;
  return link;
}

#else

std::string why_no_nccl() {
  return concat("this build has no NCCL: it was made against a LibTorch without it, or without the headers of NCCL and CUDA", instead());
}

std::shared_ptr<const DeviceLink> make_nccl_link(c10::Device device) {
  auto link = std::make_shared<DeviceLink>();
  link->device = device;
  link->why_not = why_no_nccl();
  link->make = [](c10::intrusive_ptr<c10d::Store>, int, int, double) -> c10::intrusive_ptr<c10d::Backend> {
    fail(ErrorCode::kEnvironment, why_no_nccl());
  };
  return link;
}

#endif

}  // namespace cohort

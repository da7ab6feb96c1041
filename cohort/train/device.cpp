#include "cohort/train/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "cohort/base/fail.h"
#include "cohort/comm/net/nccl.h"

namespace cohort {

c10::Device device_of_rank(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name != "cuda") fail(ErrorCode::kBadInput, name_settings("--device "), name, ": expected cpu or cuda");
  if (!torch::cuda::is_available())
    fail(ErrorCode::kBadInput,
         name_settings("--device cuda: LibTorch sees no CUDA device (a CPU build of LibTorch, no driver, or CUDA_VISIBLE_DEVICES hides "
                       "them); use --device cpu, or build Cohort against a CUDA build of LibTorch"));
  const c10::Device device(c10::DeviceType::CUDA,
                           static_cast<c10::DeviceIndex>(local_rank % static_cast<int>(torch::cuda::device_count())));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

std::shared_ptr<const DeviceLink> link_of_device(c10::Device device) { return device.is_cuda() ? make_nccl_link(device) : nullptr; }

}  // namespace cohort

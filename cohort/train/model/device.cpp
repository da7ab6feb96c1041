#include "cohort/train/model/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "cohort/base/fail.h"
#include "cohort/comm/nccl.h"

namespace cohort {
namespace {

std::string use_cpu() { return name_settings("; use --device cpu, or build Cohort against a CUDA build of LibTorch"); }

std::string option_of(const DeviceChoice& choice) { return name_settings("--device ") + to_text(choice); }

int num_gpus_here(const DeviceChoice& choice, int rank) {
  if (!torch::cuda::is_available())
    fail(ErrorCode::kBadInput, option_of(choice), " (rank ", rank,
         "): LibTorch sees no CUDA device (a CPU build of LibTorch, no driver, or CUDA_VISIBLE_DEVICES hides them)", use_cpu());
  return static_cast<int>(torch::cuda::device_count());
}

}  // namespace

void check_devices(const Devices& devices) {
  for (const DeviceChoice& choice : devices.entries)
    if (choice.is_gpu && !at::CUDAHooksRegistry()->Has("CUDAHooks"))
      fail(ErrorCode::kBadInput, option_of(choice), ": this is a CPU build of LibTorch, which sees no CUDA device", use_cpu());
}

c10::Device device_of_rank(const Devices& devices, const World& world) {
  const DeviceChoice& choice = devices.of(world.rank);
  if (!choice.is_gpu) return c10::Device(c10::DeviceType::CPU);
  const int num_gpus = num_gpus_here(choice, world.rank), first = world.rank - world.local_rank;
  // A launcher may deal ranks out over hosts in turn; then only the place on this host is known.
  const bool side_by_side = first >= 0 && first + world.local_size <= world.size;
  const int index =
      choice.index >= 0 || side_by_side ? gpu_of_rank(devices, world.rank, first, world.local_size, num_gpus) : world.local_rank % num_gpus;
  if (index >= num_gpus)
    fail(ErrorCode::kBadInput, option_of(choice), " (rank ", world.rank, "): this host has ", num_gpus,
         num_gpus == 1 ? " CUDA device, cuda:0" : concat(" CUDA devices, cuda:0 to cuda:", num_gpus - 1), "; name one of them, or cpu");
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

std::shared_ptr<const DeviceLink> link_of_device(const Devices& devices, c10::Device device) {
  if (devices.all_cpu()) return nullptr;
  if (device.is_cuda()) return make_nccl_link(device);
  auto link = std::make_shared<DeviceLink>();
  link->device = device;
  link->why_not = "it computes on the CPU";
  return link;
}

}  // namespace cohort

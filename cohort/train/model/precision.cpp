// Mixed precision (Micikevicius et al. 2018, "Mixed Precision Training", sections 3.1-3.3) on LibTorch's autocast, which casts the inputs
// of each listed operator. A weight is cast once in a scope; its cast is a node of the graph, so backward casts the gradient back and
// `.grad` is fp32. Cost on the CPU: a copy of each weight in forward and of each gradient in backward.
#include "cohort/train/model/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <strings.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/comm/nccl.h"
#include "cohort/models/parts.h"

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
  // If the launcher distributed ranks round-robin over hosts, only the local rank is known.
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

std::shared_ptr<const DeviceLink> make_device_link(const Devices& devices, c10::Device device) {
  if (devices.all_cpu()) return nullptr;
  if (device.is_cuda()) return make_nccl_link(device);
  auto link = std::make_shared<DeviceLink>();
  link->device = device;
  link->why_not = "it computes on the CPU";
  return link;
}

/// True if /proc/cpuinfo lists `feature`, or lists none at all.
static bool processor_has(const std::string& feature) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) return (line + ' ').find(' ' + feature + ' ') != std::string::npos;
  }
  return true;
}

/// True if the environment limits oneDNN to instructions below AVX512_CORE_FP16.
static bool is_limited_below_fp16() {
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    for (const char* const limit :
         {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"})
      if (const char* const value = std::getenv(name); value != nullptr && ::strcasecmp(value, limit) == 0) return true;
  return false;
}

std::string precision_warning(Precision precision, c10::DeviceType device, bool has_lstm) {
  if (precision == Precision::kBf16 && device == c10::DeviceType::CPU && has_lstm && !cpu_has_lstm_in(at::kBFloat16))
    return "this processor has no kernel for an LSTM in bf16 (it needs AVX-512): that layer computes in fp32";
  if (precision != Precision::kFp16 || device != c10::DeviceType::CPU) return "";
#if defined(__x86_64__)
  if ((processor_has("avx512_fp16") || processor_has("amx_fp16")) && !is_limited_below_fp16()) return "";
#elif defined(__aarch64__)
  if (processor_has("asimdhp")) return "";
#endif
  return name_settings(
      "this processor has no fp16 arithmetic, so that matrix products in fp16 are many times slower than in fp32; use --precision bf16");
}

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device) : device_(device) {
  if (precision == Precision::kFp32) return;
  if (device != c10::DeviceType::CPU && device != c10::DeviceType::CUDA) {
    fail(ErrorCode::kBadInput, "precision ", name_of(precision), " is built for cpu and cuda, not for ", c10::DeviceTypeName(device, true));
  }
  active_ = true;
  enabled_before_ = at::autocast::is_autocast_enabled(device);
  type_before_ = at::autocast::get_autocast_dtype(device);
  const at::ScalarType type = precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf;
  // Drop the weights that an outer scope has cast to another type.
  if (enabled_before_ && type_before_ != type) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device, type);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  const bool other_type = at::autocast::get_autocast_dtype(device_) != type_before_;
  if (at::autocast::decrement_nesting() == 0 || other_type) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
}

at::Tensor for_loss(const at::Tensor& output) {
  const at::ScalarType type = output.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? output.to(at::kFloat) : output;
}

}  // namespace cohort

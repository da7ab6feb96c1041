#pragma once
// Where a rank computes, and in which arithmetic.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/world/world.h"

namespace cohort {

// Where a rank computes, and how it exchanges what lies there.

/// What can be said before ranks are forked, touching no GPU: Error(kBadInput) where GPUs are asked for and this LibTorch has none.
void check_devices(const Devices& devices);

/// Of this rank; a GPU becomes this thread's current one. Error(kBadInput) with what to do where there is none, or not that one.
c10::Device device_of_rank(const Devices& devices, const World& world);

/// For GroupOptions. Null where the whole job is on the CPU; NCCL's link for a GPU. A rank on the CPU beside others on GPUs gets a link
/// that says so, for all ranks decide together how they exchange: such a job does it in the hosts' memory.
std::shared_ptr<const DeviceLink> link_of_device(const Devices& devices, c10::Device device);

// The arithmetic of forward and backward: fp32, or half precision where LibTorch's autocast finds that it does no harm. Parameters,
// gradients and optimizer state are fp32 in any case ("master weights").

/// What a user should know before training so on `device`: "" or a sentence (fp16 on a processor without arithmetic for it; LSTM layers,
/// for which it may have no kernel).
std::string precision_warning(Precision precision, c10::DeviceType device, bool has_lstm = false);

/// While it lives, operators of this thread run in `precision` on `device` where autocast lists them (matrix products, convolutions,
/// linear layers, attention); for fp32 it does nothing at all. What was set before comes back at the end, also by an exception; scopes
/// nest. It belongs around forward of one micro-step, not around backward (whose operators follow the types of forward) and not around the
/// optimizer: half-precision copies of weights are made once in a scope and dropped at its end. CPU and CUDA.
class COHORT_PROGRAM_API AutocastScope {
 public:
  /// Error(kBadInput) for other devices.
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool active_ = false, enabled_before_ = false;
  at::ScalarType type_before_ = at::kFloat;
};

/// A model's output as the loss should get it: bf16 and half become float, other types stay (no copy). On the CPU autocast runs
/// cross-entropy in the type of the logits, and a loss in bf16 has 3 digits.
COHORT_PROGRAM_API at::Tensor for_loss(const at::Tensor& output);

}  // namespace cohort

#pragma once
// The device on which a rank computes, and mixed precision.

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

/// Error(kBadInput) if a GPU is asked for and this LibTorch is a CPU build. Touches no GPU, so it may run before ranks are forked.
void check_devices(const Devices& devices);

/// This rank's device; a GPU becomes the thread's current one. Error(kBadInput) with advice if it does not exist.
c10::Device device_of_rank(const Devices& devices, const World& world);

/// For GroupOptions: NCCL's link for a GPU, null if the whole job is on the CPU. A CPU rank of a job with GPUs gets a link that makes all
/// ranks exchange through host memory.
std::shared_ptr<const DeviceLink> make_device_link(const Devices& devices, c10::Device device);

/// A warning before training in `precision`, or "": fp16 on a processor without fp16 arithmetic, LSTM layers without a bf16 kernel.
std::string precision_warning(Precision precision, c10::DeviceType device, bool has_lstm = false);

/// While it lives, this thread's operators that autocast lists (matrix products, convolutions, linear layers, attention) run in `precision`
/// on `device`, CPU or CUDA; fp32 changes nothing. Scopes nest. It belongs around the forward of one micro-batch: half-precision copies of
/// weights are made once in a scope and dropped at its end, and backward follows the types of forward. Parameters, gradients and optimizer
/// state are fp32 ("master weights").
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

/// The output for the loss: bf16 and half become float, since CPU autocast runs cross-entropy in the type of the logits, and a bf16 loss
/// has 3 digits. Other types are not copied.
COHORT_PROGRAM_API at::Tensor for_loss(const at::Tensor& output);

}  // namespace cohort

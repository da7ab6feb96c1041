#pragma once
// For tests: a device that is none. Its tensors lie in host memory, but LibTorch and Cohort take them for another device's: they cannot be
// read as the host's, and what exchanges them must know them. So what is meant for GPUs runs where there is none.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "tests/support/backend_ranks.h"

namespace cohort {

/// One for each thread rank: LibTorch runs the backward of a device in a thread of that device.
inline constexpr int kNumTestDevices = 4;
inline c10::Device test_device(int index) { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// The memory of a tensor of that device as a host's tensor.
inline at::Tensor host_view(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

namespace test_device_ops {

using Type = std::optional<at::ScalarType>;
using DeviceOption = std::optional<at::Device>;

inline thread_local c10::DeviceIndex current_device = 0;

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device exchangeDevice(c10::Device device) const override { return test_device(std::exchange(current_device, device.index())); }
  c10::Device getDevice() const override { return test_device(current_device); }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, test_device(current_device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumTestDevices; }
};

struct Allocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr here = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = here.get();
    const c10::DeleterFnPtr deleter = here.get_deleter();
    return {data, here.release_context(), deleter, test_device(current_device)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

inline Allocator& allocator() {
  static Allocator one;
  return one;
}

inline at::Tensor empty(c10::IntArrayRef size, Type type, std::optional<at::Layout>, DeviceOption device, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(test_device(current_device)));
  return at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat),
                                   format);
}

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Type type, std::optional<at::Layout>, DeviceOption device,
                                std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(test_device(current_device)));
  return at::detail::empty_strided_generic(size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type.value_or(at::kFloat));
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  host_view(to).copy_(host_view(from));
  return to;
}

inline at::Tensor& set_storage(at::Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  c10::TensorImpl* const self = tensor.unsafeGetTensorImpl();
  self->set_storage_keep_dtype(std::move(storage));
  self->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

inline void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

inline thread_local int num_scalars_read = 0;

inline at::Scalar local_scalar(const at::Tensor& tensor) {
  ++num_scalars_read;
  return host_view(tensor).item();
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

/// For the life of the process.
inline void register_operators() {
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", empty);
  library->impl("empty_strided", empty_strided);
  library->impl("_copy_from", copy_from);
  library->impl("_copy_from_and_resize", [](const at::Tensor& from, const at::Tensor& to) { return copy_from(from, to, false); });
  library->impl("_local_scalar_dense", local_scalar);
  library->impl("as_strided", at::native::as_strided_tensorimpl);
  library->impl("set_.source_Storage_storage_offset", set_storage);
  library->impl("view", at::native::view);
  // Every other operator: on copies in host memory.
  static auto* const others = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace test_device_ops

/// Times that this thread waited for a number of that device (Tensor::item()).
inline int num_scalars_read() { return test_device_ops::num_scalars_read; }

/// Tells LibTorch that there is such a device; each test that uses it calls this first. Not at the start of the program: a process with
/// devices can no longer fork once autograd has run, and other tests do.
inline void use_test_device() {
  static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::PrivateUse1, new test_device_ops::Guard);
  static test_device_ops::Hooks hooks;
  static const bool once = [] {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("test_device");
    test_device_ops::register_operators();
    return true;
  }();
  (void)once;
}

/// What stands for NCCL: exchanges that device's tensors, and refuses the host's.
class TestDeviceBackend : public c10d::Backend {
 public:
  explicit TestDeviceBackend(BackendPointer over)
      : c10d::Backend(over->getRank(), over->getSize()), expected_device(over->getRank()), over_(std::move(over)) {}

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors host = views(tensors);
    return over_->allreduce(host, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors host = views(tensors);
    return over_->broadcast(host, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    at::Tensor to = views({output})[0], from = host_view(input);
    return over_->_allgather_base(to, from, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    at::Tensor to = views({output})[0], from = host_view(input);
    return over_->_reduce_scatter_base(to, from, options);
  }
  const std::string getBackendName() const override { return "test-device"; }
  void shutdown() override { over_->shutdown(); }

  int expected_device;
  int num_calls = 0;

 private:
  Tensors views(const Tensors& tensors) {
    ++num_calls;
    Tensors host;
    for (const at::Tensor& tensor : tensors) {
      require(tensor.device() == test_device(expected_device), "a tensor of " + tensor.device().str() + " came to the device's backend");
      host.push_back(host_view(tensor));
    }
    return host;
  }
  BackendPointer over_;
};

}  // namespace cohort

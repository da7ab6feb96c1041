// The kernels that torch.ops.quantized has in Python, by the dispatcher: their C++ functions are not exported. Weights are packed by the
// engine that is set while they are packed ("x86": oneDNN where the CPU has VNNI and a convolution is of the kind that it is quicker for,
// else FBGEMM); the packed weight knows its kernel from then on. The engine ONEDNN by itself is not used: its dynamic product ends the
// process in 2.13. With oneDNN a packed convolution keeps what its first call was made of, the ReLU too: a kernel is of one layer, whose
// ReLU never changes. Inputs of another size it makes anew in every call, which costs 40 us: as much as a small layer. So a layer packs its
// weights again for another size, and keeps kMostKernels of them.

#include "cohort/infer/compressed/int8_kernels.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/_make_per_channel_quantized_tensor.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kMostKernels = 3;  // Of one layer: for a batch, its rest, and single inputs.

/// The quickest engine here that has all kernels; none where this LibTorch was built without.
std::optional<at::QEngine> int8_engine() {
  const std::vector<at::QEngine>& known = at::Context::supportedQEngines();
  for (const at::QEngine engine : {at::QEngine::X86, at::QEngine::FBGEMM})
    if (std::find(known.begin(), known.end(), engine) != known.end()) return engine;
  return {};
}

/// While it lives, weights are packed by it.
class EngineGuard {
 public:
  EngineGuard() : before_(at::globalContext().qEngine()) {
    check_int8_kernels();
    at::globalContext().setQEngine(*int8_engine());
  }
  ~EngineGuard() { at::globalContext().setQEngine(before_); }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;

 private:
  at::QEngine before_;
};

/// LibTorch 2.13 says once a process that such tensors will go one day (pytorch issue 184982; docs/adr/0030). That is for us to know: it is
/// said here, to nobody.
void hear_deprecation() {
  struct Deaf : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  static const bool heard = [] {
    Deaf deaf;
    const c10::WarningUtils::WarningHandlerGuard guard(&deaf);
    at::quantize_per_tensor(at::zeros({1}), 1, 0, at::kQUInt8);
    return true;
  }();
  static_cast<void>(heard);
}

template <typename Signature>
auto int8_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

at::Tensor int8_weight(const Codes& weight) {
  hear_deprecation();
  const at::Tensor scales = weight.scales.view({-1}).to(at::kDouble);
  return at::_make_per_channel_quantized_tensor(weight.codes, scales, at::zeros({scales.size(0)}, at::kLong), 0);
}

std::optional<at::Tensor> given(const at::Tensor& bias) { return bias.defined() ? std::optional(bias) : std::nullopt; }

c10::List<int64_t> list_of(at::IntArrayRef values) { return c10::List<int64_t>(values); }

using PackedConv2d = c10::intrusive_ptr<ConvPackedParamsBase<2>>;

PackedConv2d pack_conv2d(const at::Tensor& weight, const std::optional<at::Tensor>& bias, const c10::List<int64_t>& stride,
                         const c10::List<int64_t>& padding, const c10::List<int64_t>& dilation, int64_t groups) {
  using Pack = PackedConv2d(at::Tensor, std::optional<at::Tensor>, c10::List<int64_t>, c10::List<int64_t>, c10::List<int64_t>, int64_t);
  const EngineGuard engine;
  return int8_operator<Pack>("quantized::conv2d_prepack").call(weight, bias, stride, padding, dilation, groups);
}

}  // namespace

bool has_int8_kernels() { return int8_engine().has_value(); }

void check_int8_kernels() {
  if (!has_int8_kernels())
    fail(ErrorCode::kBadInput,
         "this LibTorch has no int8 kernels for this CPU (it needs the engine x86 or FBGEMM); a weight-only file runs everywhere");
}

at::Tensor to_int8(const at::Tensor& input, const CodeScale& scale) {
  hear_deprecation();
  return input.is_quantized() ? input : at::quantize_per_tensor(input, scale.scale, scale.zero_point, at::kQUInt8);
}

at::Tensor to_floats(const at::Tensor& input) { return input.is_quantized() ? input.dequantize() : input; }

Int8Linear::Int8Linear(const Codes& weight, const at::Tensor& bias) : torch::nn::Module("Int8Linear") {
  using Pack = c10::intrusive_ptr<LinearPackedParamsBase>(at::Tensor, std::optional<at::Tensor>);
  const EngineGuard engine;
  packed_ = int8_operator<Pack>("quantized::linear_prepack").call(int8_weight(weight), given(bias));
}

at::Tensor Int8Linear::forward_static(const at::Tensor& input, const CompressedLayer& how) const {
  if (!how.floats) {
    const at::Tensor codes = to_int8(input, how.input);
    return how.relu ? packed_->apply_relu(codes, how.output.scale, how.output.zero_point)
                    : packed_->apply(codes, how.output.scale, how.output.zero_point);
  }
  const at::Tensor floats = to_floats(input);
  return how.relu ? packed_->apply_with_input_q_dq_qweight_dq_relu_output_fp32(floats, how.input.scale, how.input.zero_point)
                  : packed_->apply_with_input_q_dq_qweight_dq_output_fp32(floats, how.input.scale, how.input.zero_point);
}

at::Tensor Int8Linear::forward_dynamic(const at::Tensor& input) const {
  return packed_->apply_dynamic(input.contiguous(), /*reduce_range=*/true);
}

Int8Conv2d::Int8Conv2d(const Codes& weight, const at::Tensor& bias, const torch::nn::Conv2dImpl& conv) : torch::nn::Module("Int8Conv2d") {
  if (!has_int8_kernel(conv)) fail(ErrorCode::kBadInput, "a convolution that pads otherwise than with zeros has no int8 kernel");
  const auto& options = conv.options;
  const auto& padding = std::get<torch::ExpandingArray<2>>(options.padding());
  kernels_.push_back({{},
                      0,
                      pack_conv2d(int8_weight(weight), given(bias), list_of(*options.stride()), list_of(*padding),
                                  list_of(*options.dilation()), options.groups())});
}

const Int8Conv2d::Packed& Int8Conv2d::packed_for(const at::Tensor& input) const {
  const int threads = at::get_num_threads();
  const auto fits = [&](const Kernel& kernel) { return kernel.threads == threads && input.sizes() == kernel.sizes; };
  const auto found = std::find_if(kernels_.begin(), kernels_.end(), fits);
  if (found == kernels_.end()) {
    Kernel made{input.sizes().vec(), threads, kernels_.front().packed};
    const bool is_first = kernels_.front().sizes.empty();
    if (is_first || !at::cpu::is_avx512_vnni_supported()) {
      kernels_.clear();  // FBGEMM has one for all sizes.
    } else {
      const auto [weight, bias] = made.packed->unpack();
      made.packed =
          pack_conv2d(weight, bias, made.packed->stride(), made.packed->padding(), made.packed->dilation(), made.packed->groups());
      if (kernels_.size() == kMostKernels) kernels_.pop_back();
    }
    kernels_.insert(kernels_.begin(), std::move(made));
  } else {
    std::rotate(kernels_.begin(), found, found + 1);
  }
  return kernels_.front().packed;
}

at::Tensor Int8Conv2d::forward_static(const at::Tensor& input, const CompressedLayer& how) const {
  const at::Tensor codes = to_int8(input, how.input);
  const Packed& packed = packed_for(codes);
  return how.relu ? packed->apply_relu(codes, how.output.scale, how.output.zero_point)
                  : packed->apply(codes, how.output.scale, how.output.zero_point);
}

bool has_int8_kernel(const torch::nn::Conv2dImpl& conv) {
  return std::holds_alternative<torch::ExpandingArray<2>>(conv.options.padding()) &&
         std::holds_alternative<torch::enumtype::kZeros>(conv.options.padding_mode());
}

at::Tensor int8_sum(const at::Tensor& left, const at::Tensor& right, const CompressedLayer& how) {
  using Sum = at::Tensor(at::Tensor, at::Tensor, double, int64_t);
  // Looked up once: a look-up costs as much as the sum of a small tensor.
  static const auto plain = int8_operator<Sum>("quantized::add");
  static const auto with_relu = int8_operator<Sum>("quantized::add_relu");
  return (how.relu ? with_relu : plain).call(left, right, how.output.scale, how.output.zero_point);
}

}  // namespace cohort

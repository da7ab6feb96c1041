// A compressed model. Steps: 1. each layer that `form` names gets a module with packed int8 weights, or a function of int8 tensors; 2.
// layers that compute in floats and read an int8 output get it converted; 3. the remaining tensors are read or decoded. A layer of form
// "through" or "absorbed" works on whatever its input is, so an int8 tensor passes from kernel to kernel without conversion.
//
// Kernels are those of torch.ops.quantized, called through the dispatcher since their C++ functions are not exported. Weights are packed by
// the engine that is set while they are packed ("x86": oneDNN where the CPU has VNNI and it is faster for this convolution, else FBGEMM).
// The engine ONEDNN by itself is not used: its dynamic product ends the process in 2.13. A packed oneDNN convolution keeps what its first
// call was built for, including the ReLU, so a kernel belongs to one layer, whose ReLU never changes. For an input of another size oneDNN
// would rebuild its primitive in every call, which takes 40 us, as long as a small layer. So a layer packs its weights again for another
// size, and keeps kMaxKernels of them.
#include "cohort/infer/compressed/compressed_model.h"

#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/checkpoint_pieces.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/_make_per_channel_quantized_tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

constexpr size_t kMaxKernels = 3;  // For full batches, the last smaller one, and single inputs.

/// The fastest engine that has all kernels; none where this LibTorch was built without one.
std::optional<at::QEngine> int8_engine() {
  const std::vector<at::QEngine>& known = at::Context::supportedQEngines();
  for (const at::QEngine engine : {at::QEngine::X86, at::QEngine::FBGEMM})
    if (std::find(known.begin(), known.end(), engine) != known.end()) return engine;
  return {};
}

/// Weights are packed by the int8 engine until the returned object is destroyed.
[[nodiscard]] auto with_int8_engine() {
  check_int8_kernels();
  const at::QEngine before = at::globalContext().qEngine();
  at::globalContext().setQEngine(*int8_engine());
  return c10::make_scope_exit([before] { at::globalContext().setQEngine(before); });
}

/// Triggers LibTorch 2.13's once-a-process deprecation warning of quantised tensors with a handler that drops it (pytorch issue 184982;
/// docs/adr/0030).
void silence_deprecation_warning() {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  static const bool done = [] {
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    at::quantize_per_tensor(at::zeros({1}), 1, 0, at::kQUInt8);
    return true;
  }();
  static_cast<void>(done);
}

template <typename Signature>
auto int8_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

at::Tensor int8_weight(const Codes& weight) {
  silence_deprecation_warning();
  const at::Tensor scales = weight.scales.view({-1}).to(at::kDouble);
  return at::_make_per_channel_quantized_tensor(weight.codes, scales, at::zeros({scales.size(0)}, at::kLong), 0);
}

std::optional<at::Tensor> optional_bias(const at::Tensor& bias) { return bias.defined() ? std::optional(bias) : std::nullopt; }

c10::List<int64_t> list_of(at::IntArrayRef values) { return c10::List<int64_t>(values); }

using PackedConv2d = c10::intrusive_ptr<ConvPackedParamsBase<2>>;

PackedConv2d pack_conv2d(const at::Tensor& weight, const std::optional<at::Tensor>& bias, const c10::List<int64_t>& stride,
                         const c10::List<int64_t>& padding, const c10::List<int64_t>& dilation, int64_t groups) {
  using Pack = PackedConv2d(at::Tensor, std::optional<at::Tensor>, c10::List<int64_t>, c10::List<int64_t>, c10::List<int64_t>, int64_t);
  const auto engine = with_int8_engine();
  return int8_operator<Pack>("quantized::conv2d_prepack").call(weight, bias, stride, padding, dilation, groups);
}

/// Floats of int8 codes; floats unchanged.
at::Tensor to_floats(const at::Tensor& input) { return input.is_quantized() ? input.dequantize() : input; }

}  // namespace

void check_int8_kernels() {
  if (!int8_engine())
    fail(ErrorCode::kBadInput,
         "this LibTorch has no int8 kernels for this CPU (it needs the engine x86 or FBGEMM); a weight-only file runs everywhere");
}

at::Tensor to_int8(const at::Tensor& input, const CodeScale& scale) {
  silence_deprecation_warning();
  return input.is_quantized() ? input : at::quantize_per_tensor(input, scale.scale, scale.zero_point, at::kQUInt8);
}

Int8Linear::Int8Linear(const Codes& weight, const at::Tensor& bias) : torch::nn::Module("Int8Linear") {
  using Pack = c10::intrusive_ptr<LinearPackedParamsBase>(at::Tensor, std::optional<at::Tensor>);
  const auto engine = with_int8_engine();
  packed_ = int8_operator<Pack>("quantized::linear_prepack").call(int8_weight(weight), optional_bias(bias));
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
  if (!has_int8_kernel(conv)) fail(ErrorCode::kBadInput, "only a convolution that pads with zeros has an int8 kernel");
  const auto& options = conv.options;
  const auto& padding = std::get<torch::ExpandingArray<2>>(options.padding());
  kernels_.push_back({{},
                      0,
                      pack_conv2d(int8_weight(weight), optional_bias(bias), list_of(*options.stride()), list_of(*padding),
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
      kernels_.clear();  // FBGEMM's kernel takes all sizes.
    } else {
      const auto [weight, bias] = made.packed->unpack();
      made.packed =
          pack_conv2d(weight, bias, made.packed->stride(), made.packed->padding(), made.packed->dilation(), made.packed->groups());
      if (kernels_.size() == kMaxKernels) kernels_.pop_back();
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
  // A look-up takes as long as the sum of a small tensor.
  static const auto plain = int8_operator<Sum>("quantized::add");
  static const auto with_relu = int8_operator<Sum>("quantized::add_relu");
  return (how.relu ? with_relu : plain).call(left, right, how.output.scale, how.output.zero_point);
}

namespace {

using Form = CompressedLayer::Form;

struct Sources {
  const CompressedForm& form;
  const ReadTensor& read;
};

at::Tensor read_floats(const Sources& sources, const std::string& name, const at::Tensor& like) {
  at::Tensor tensor = at::empty(like.sizes(), at::kFloat);
  sources.read(name, DType::kF32, like.sizes().vec(), tensor.data_ptr());
  return tensor;
}

/// Codes for an int8 kernel: 8 bits, one scale a row, the shape of the model's weight.
Codes int8_codes(const Sources& sources, const std::string& name, const at::Tensor& weight) {
  const auto found = sources.form.tensors.find(name);
  if (found == sources.form.tensors.end() || found->second.bits != 8 || found->second.group != 0)
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name), " is not kept as int8 with a scale a row, which its layer needs");
  if (found->second.shape != weight.sizes().vec())
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name), " is ", shape_text(found->second.shape), ", and the model's is ",
         shape_text(weight.sizes().vec()), "; the file is of another model");
  return read_codes(name, found->second, sources.read);
}

std::shared_ptr<Int8Linear> int8_linear(const Sources& sources, const std::string& name, const torch::nn::LinearImpl& linear) {
  const Codes codes = int8_codes(sources, name + ".weight", linear.weight);
  return std::make_shared<Int8Linear>(codes, linear.bias.defined() ? read_floats(sources, name + ".bias", linear.bias) : at::Tensor());
}

/// What TransformerBlock computes, with its four products in int8.
class Int8Block : public torch::nn::Module {
 public:
  Int8Block(const Sources& sources, const std::string& name, const TransformerBlockImpl& block)
      : torch::nn::Module("Int8Block"), norm1_(block.norm1), norm2_(block.norm2), heads_(block.options().heads) {
    register_module("norm1", norm1_);  // Their tensors are read with the others.
    register_module("norm2", norm2_);
    qkv_ = int8_linear(sources, name + ".qkv", *block.qkv);
    out_ = int8_linear(sources, name + ".out", *block.out);
    up_ = int8_linear(sources, name + ".up", *block.up);
    down_ = int8_linear(sources, name + ".down", *block.down);
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor attended = causal_attention(qkv_->forward_dynamic(norm1_->forward(input)), heads_);
    const at::Tensor x = input + out_->forward_dynamic(attended);
    return x + down_->forward_dynamic(at::gelu(up_->forward_dynamic(norm2_->forward(x))));
  }

 private:
  torch::nn::LayerNorm norm1_, norm2_;
  int64_t heads_;
  std::shared_ptr<Int8Linear> qkv_, out_, up_, down_;
};

[[noreturn]] void fail_kind(const LayerGraph::Layer& layer, const CompressedLayer& how) {
  fail(ErrorCode::kBadInput, "layer ", quote_text(how.name), " is of the form ", form_name(how.form), ", which a layer of kind ",
       layer.kind, " has no kernel for; the file is of another model");
}

/// A layer with weights, static or dynamic.
void make_kernel(LayerGraph& model, size_t index, const CompressedLayer& how, const Sources& sources) {
  const LayerGraph::Layer& layer = model.layers()[index];
  const bool is_static = how.form == Form::kStatic;
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(layer.module.get())) {
    const auto kernel = int8_linear(sources, how.name, *linear);
    return model.replace_layer(index, kernel, [kernel, how, is_static](const LayerGraph::Inputs& in) {
      return is_static ? kernel->forward_static(in.at(0), how) : kernel->forward_dynamic(in.at(0));
    });
  }
  const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(layer.module.get());
  const auto* block = dynamic_cast<const TransformerBlockImpl*>(layer.module.get());
  if (is_static && conv && !how.floats && has_int8_kernel(*conv)) {
    const Codes codes = int8_codes(sources, how.name + ".weight", conv->weight);
    // The file always has a bias, also where the model has none: a folded batch norm needs one.
    const at::Tensor bias = read_floats(sources, how.name + ".bias", at::empty({conv->options.out_channels()}));
    const auto kernel = std::make_shared<Int8Conv2d>(codes, bias, *conv);
    model.replace_layer(index, kernel, [kernel, how](const LayerGraph::Inputs& in) { return kernel->forward_static(in.at(0), how); });
  } else if (!is_static && block) {
    const auto kernel = std::make_shared<Int8Block>(sources, how.name, *block);
    model.replace_layer(index, kernel, [kernel](const LayerGraph::Inputs& in) { return kernel->forward(in.at(0)); });
  } else {
    fail_kind(layer, how);
  }
}

void make_layer(LayerGraph& model, size_t index, const CompressedLayer& how, const Sources& sources) {
  const LayerGraph::Layer& layer = model.layers()[index];
  switch (how.form) {
    case Form::kStatic:
    case Form::kDynamic:
      return make_kernel(model, index, how, sources);
    case Form::kSum:
      if (layer.module || layer.inputs.size() != 2) fail_kind(layer, how);
      return model.replace_layer(index, nullptr, [how](const LayerGraph::Inputs& in) { return int8_sum(in.at(0), in.at(1), how); });
    case Form::kAbsorbed:
      if (layer.inputs.size() != 1) fail_kind(layer, how);
      return model.replace_layer(index, layer.module ? std::make_shared<torch::nn::Module>("Absorbed") : nullptr,
                                 [](const LayerGraph::Inputs& in) { return in.at(0); });
    case Form::kThrough:
      return;
  }
}

/// Converts the layer's inputs to floats.
void convert_inputs(LayerGraph& model, size_t index) {
  const LayerGraph::Function function = model.layers()[index].function;
  model.replace_layer(index, nullptr, [function](const LayerGraph::Inputs& in) {
    LayerGraph::Inputs floats;
    floats.reserve(in.size());
    for (const at::Tensor& input : in) floats.push_back(to_floats(input));
    return function(floats);
  });
}

void read_remaining(LayerGraph& model, const Sources& sources) {
  std::vector<NamedTensor> tensors = distinct_parameters(model);
  for (const NamedTensor& buffer : distinct_buffers(model)) tensors.push_back(buffer);
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "tensor ", name, " of the model is not contiguous; loading needs it to be");
    const auto found = sources.form.tensors.find(name);
    if (found == sources.form.tensors.end()) {
      sources.read(name, dtype_of_tensor(name, tensor), tensor.sizes().vec(), tensor.data_ptr());
      continue;
    }
    if (found->second.shape != tensor.sizes().vec() || tensor.scalar_type() != at::kFloat)
      fail(ErrorCode::kBadInput, "tensor ", quote_text(name), " is stored as codes of ", shape_text(found->second.shape),
           ", and the model's is ", dtype_name(dtype_of_tensor(name, tensor)), " ", shape_text(tensor.sizes().vec()));
    tensor.copy_(found->second.bits == 32 ? read_sparse(name, found->second, sources.read)
                                          : decode_rows(read_codes(name, found->second, sources.read), found->second));
  }
}

}  // namespace

void make_compressed(LayerGraph& model, const CompressedForm& form, const ReadTensor& read) {
  at::NoGradGuard no_grad;
  const Sources sources{form, read};
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < model.layers().size(); ++i) index_of[model.layers()[i].name] = i;
  std::vector<const CompressedLayer*> hows(model.layers().size());
  for (const CompressedLayer& how : form.layers) {
    const auto found = index_of.find(how.name);
    if (found == index_of.end())
      fail(ErrorCode::kBadInput, "the file has a layer ", quote_text(how.name), ", which the model does not have; it is of another model");
    hows[found->second] = &how;
    make_layer(model, found->second, how, sources);
  }
  std::vector<bool> gives_int8(hows.size());
  for (size_t i = 0; i < hows.size(); ++i) {
    bool takes_int8 = false;
    for (const int input : model.layers()[i].inputs) takes_int8 = takes_int8 || (input >= 0 && gives_int8[static_cast<size_t>(input)]);
    const bool is_float = !hows[i] || hows[i]->form == Form::kDynamic;
    if (is_float && takes_int8) convert_inputs(model, i);
    gives_int8[i] = !is_float && (takes_int8 || hows[i]->form == Form::kStatic) && !hows[i]->floats;
  }
  // The model's output is floats.
  if (!hows.empty() && gives_int8.back()) {
    const LayerGraph::Function function = model.layers().back().function;
    model.replace_layer(hows.size() - 1, nullptr, [function](const LayerGraph::Inputs& in) { return to_floats(function(in)); });
  }
  read_remaining(model, sources);
  model.eval();
}

}  // namespace cohort

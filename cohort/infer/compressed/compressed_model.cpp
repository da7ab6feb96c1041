// Steps: 1. each layer that `form` names gets a module with packed int8 weights, or a function of int8 tensors; 2. layers that compute in
// floats behind a layer that gives int8 get floats; 3. the tensors that are left are read as they are, or decoded.
// A layer of form "through" or "absorbed" sees what the layer before it gives, so an int8 tensor goes from kernel to kernel without
// becoming floats in between.

#include "cohort/infer/compressed/compressed_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/infer/compressed/int8_kernels.h"
#include "cohort/infer/compressed/sparse_tensor.h"
#include "cohort/infer/compressed/tensor_type.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
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

/// Codes of an int8 kernel: 8 bits, one scale a row, of the shape that the model's weight has.
Codes int8_codes(const Sources& sources, const std::string& name, const at::Tensor& weight) {
  const auto found = sources.form.tensors.find(name);
  if (found == sources.form.tensors.end() || found->second.bits != 8 || found->second.group != 0)
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name), " is not kept as int8 with a scale a row, and its layer computes in int8");
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
    register_module("norm1", norm1_);  // Under these names, so that their tensors are read with the others.
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

void make_static(LayerGraph& model, size_t index, const CompressedLayer& how, const Sources& sources) {
  const LayerGraph::Layer& layer = model.layers()[index];
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(layer.module.get())) {
    const auto kernel = int8_linear(sources, how.name, *linear);
    model.replace_layer(index, kernel, [kernel, how](const LayerGraph::Inputs& in) { return kernel->forward_static(in.at(0), how); });
    return;
  }
  const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(layer.module.get());
  if (!conv || how.floats || !has_int8_kernel(*conv)) fail_kind(layer, how);
  const Codes codes = int8_codes(sources, how.name + ".weight", conv->weight);
  // There is always a bias: a batch norm that was folded into it leaves one.
  const at::Tensor bias = read_floats(sources, how.name + ".bias", at::empty({conv->options.out_channels()}));
  const auto kernel = std::make_shared<Int8Conv2d>(codes, bias, *conv);
  model.replace_layer(index, kernel, [kernel, how](const LayerGraph::Inputs& in) { return kernel->forward_static(in.at(0), how); });
}

void make_dynamic(LayerGraph& model, size_t index, const CompressedLayer& how, const Sources& sources) {
  const LayerGraph::Layer& layer = model.layers()[index];
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(layer.module.get())) {
    const auto kernel = int8_linear(sources, how.name, *linear);
    model.replace_layer(index, kernel, [kernel](const LayerGraph::Inputs& in) { return kernel->forward_dynamic(in.at(0)); });
    return;
  }
  const auto* block = dynamic_cast<const TransformerBlockImpl*>(layer.module.get());
  if (!block) fail_kind(layer, how);
  const auto kernel = std::make_shared<Int8Block>(sources, how.name, *block);
  model.replace_layer(index, kernel, [kernel](const LayerGraph::Inputs& in) { return kernel->forward(in.at(0)); });
}

void make_layer(LayerGraph& model, size_t index, const CompressedLayer& how, const Sources& sources) {
  const LayerGraph::Layer& layer = model.layers()[index];
  switch (how.form) {
    case Form::kStatic:
      return make_static(model, index, how, sources);
    case Form::kDynamic:
      return make_dynamic(model, index, how, sources);
    case Form::kSum:
      if (layer.module || layer.inputs.size() != 2) fail_kind(layer, how);
      return model.replace_layer(index, nullptr, [how](const LayerGraph::Inputs& in) { return int8_sum(in.at(0), in.at(1), how); });
    case Form::kAbsorbed:
      if (layer.inputs.size() != 1) fail_kind(layer, how);
      return model.replace_layer(index, layer.module ? std::make_shared<torch::nn::Module>("Absorbed") : nullptr,
                                 [](const LayerGraph::Inputs& in) { return in.at(0); });
    case Form::kThrough:
      return;  // As it is.
  }
}

/// Floats for whatever is not made for int8.
void give_floats(LayerGraph& model, size_t index) {
  const LayerGraph::Function function = model.layers()[index].function;
  model.replace_layer(index, nullptr, [function](const LayerGraph::Inputs& in) {
    LayerGraph::Inputs floats;
    floats.reserve(in.size());
    for (const at::Tensor& input : in) floats.push_back(to_floats(input));
    return function(floats);
  });
}

void read_left(LayerGraph& model, const Sources& sources) {
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
      fail(ErrorCode::kBadInput, "tensor ", quote_text(name), " is kept as codes of ", shape_text(found->second.shape),
           ", and the model's is ", dtype_name(dtype_of_tensor(name, tensor)), " ", shape_text(tensor.sizes().vec()));
    tensor.copy_(found->second.bits == 32 ? read_sparse(name, found->second, sources.read)
                                          : decode_rows(read_codes(name, found->second, sources.read), found->second));
  }
}

}  // namespace

void make_compressed(LayerGraph& model, const CompressedForm& form, const ReadTensor& read) {
  at::NoGradGuard no_grad;
  const Sources sources{form, read};
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < model.layers().size(); ++i) places[model.layers()[i].name] = i;
  std::vector<const CompressedLayer*> hows(model.layers().size());
  for (const CompressedLayer& how : form.layers) {
    const auto place = places.find(how.name);
    if (place == places.end())
      fail(ErrorCode::kBadInput, "the file has a layer ", quote_text(how.name), ", which the model does not have; it is of another model");
    hows[place->second] = &how;
    make_layer(model, place->second, how, sources);
  }
  std::vector<bool> gives_int8(hows.size());
  for (size_t i = 0; i < hows.size(); ++i) {
    bool takes_int8 = false;
    for (const int input : model.layers()[i].inputs) takes_int8 = takes_int8 || (input >= 0 && gives_int8[static_cast<size_t>(input)]);
    const bool is_float = !hows[i] || hows[i]->form == Form::kDynamic;
    if (is_float && takes_int8) give_floats(model, i);
    gives_int8[i] = !is_float && (takes_int8 || hows[i]->form == Form::kStatic) && !hows[i]->floats;
  }
  // The model's answer is floats.
  if (!hows.empty() && gives_int8.back()) {
    const LayerGraph::Function function = model.layers().back().function;
    model.replace_layer(hows.size() - 1, nullptr, [function](const LayerGraph::Inputs& in) { return to_floats(function(in)); });
  }
  read_left(model, sources);
  model.eval();
}

}  // namespace cohort

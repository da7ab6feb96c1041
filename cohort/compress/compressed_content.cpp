// Compresses chosen layers of a model, rebuilds the model from the result, and writes it as a file.
//
//   static int8   Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only inference"
//   dynamic int8  matrix products of inputs that are scaled batch by batch
//   weight-only   codes in the file, floats in memory
//   sparse        values without their zeros (coded_tensor.cpp)
//
// Static int8 walks the layers in order and notes for each output whether it is int8:
//
//   convolution, linear   int8 where chosen: the batch norm behind it is folded into weight and bias, the ReLU is done by the kernel; the
//                         output range is that of the last layer absorbed. A linear layer whose output no int8 layer reads gives floats
//   ReLU, pooling, ...    int8 where their input is
//   sum                   int8 where both inputs are
//   Transformer block     dynamic
//   anything else         floats
//
// Folding: a convolution w * x + b followed by factor * y + shift is the convolution (factor w) * x + (factor b + shift).
// Cost: one pass over the weights of the chosen layers.
#include "cohort/compress/compressed_content.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {
namespace {

void store_codes(CompressedContent& content, const std::string& name, const at::Tensor& tensor, int bits = 8, int64_t group = 0) {
  CodedTensor how{.shape = tensor.sizes().vec(), .bits = bits, .group = 0};
  if (group < how.columns()) how.group = group;
  const Codes codes = encode_rows(tensor, bits, how.group);
  content.form.tensors[name] = how;
  content.tensors[name] = codes.codes;
  content.tensors[name + ".scale"] = codes.scales;
}

}  // namespace

CompressedContent compress_dynamic(const CompressionSource& source, const LayerSet& chosen) {
  CompressedContent content;
  for (const size_t index : chosen) {
    const LayerGraph::Layer& layer = source.model->layers()[index];
    content.form.layers.push_back({.name = layer.name, .form = CompressedLayer::Form::kDynamic});
    std::vector<std::string> products = {"weight"};
    if (source.facts[index].does == LayerFacts::Does::kBlock) products = {"qkv.weight", "out.weight", "up.weight", "down.weight"};
    for (const std::string& name : products) store_codes(content, layer.name + "." + name, *layer.module->named_parameters().find(name));
  }
  return content;
}

CompressedContent compress_weights(const CompressionSource& source, const LayerSet& chosen, int bits, int64_t group) {
  CompressedContent content;
  for (const size_t index : chosen) {
    const LayerGraph::Layer& layer = source.model->layers()[index];
    for (const auto& parameter : layer.module->named_parameters())
      if (parameter.value().dim() >= 2 && parameter.value().scalar_type() == at::kFloat)
        store_codes(content, layer.name + "." + parameter.key(), parameter.value(), bits, group);
  }
  return content;
}

CompressedContent compress_sparse(const LayerGraph& model) {
  CompressedContent content;
  for (const auto& [name, tensor] : distinct_parameters(model)) {
    if (tensor.dim() < 2 || tensor.scalar_type() != at::kFloat || tensor.numel() == 0) continue;
    SparseValues sparse = encode_sparse(tensor);
    const int64_t kept = sparse.values.numel();
    if (sparse_bytes(tensor.numel(), kept) >= static_cast<int64_t>(tensor.nbytes())) continue;
    content.form.tensors[name] = {.shape = tensor.sizes().vec(), .bits = 32, .group = 0, .kept = kept};
    content.tensors[name] = std::move(sparse.values);
    content.tensors[name + ".mask"] = std::move(sparse.mask);
  }
  return content;
}

std::shared_ptr<LayerGraph> build_compressed(const CompressionSource& source, CompressedContent& content) {
  const std::map<std::string, at::Tensor> originals = named_tensors(*source.model);
  std::map<std::string, at::Tensor> read;
  std::shared_ptr<LayerGraph> model = source.fresh();
  make_compressed(*model, content.form, [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination) {
    const auto made = content.tensors.find(name);
    const auto original = originals.find(name);
    if (made == content.tensors.end() && original == originals.end())
      fail(ErrorCode::kBadInput, "the model has no tensor ", name, ", which its compressed form needs");
    const at::Tensor tensor = (made != content.tensors.end() ? made->second : original->second).detach().contiguous();
    if (dtype_of_tensor(name, tensor) != dtype || tensor.sizes().vec() != shape)
      fail(ErrorCode::kBadInput, "tensor ", name, " is ", dtype_name(dtype_of_tensor(name, tensor)), " ", shape_text(tensor.sizes().vec()),
           ", and its compressed form needs ", dtype_name(dtype), " ", shape_text(shape));
    if (tensor.numel() > 0) std::memcpy(destination, tensor.data_ptr(), tensor.nbytes());
    read[name] = tensor;
  });
  content.tensors = std::move(read);
  return model;
}

int64_t layer_bytes(const CompressedContent& content, const std::string& layer) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : content.tensors)
    if (name.starts_with(layer + ".")) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

int64_t module_bytes(const torch::nn::Module* module) {
  int64_t bytes = 0;
  if (!module) return 0;
  for (const std::vector<at::Tensor>& tensors : {module->parameters(), module->buffers()})
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

std::map<std::string, at::Tensor> named_tensors(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : module.named_parameters()) tensors[parameter.key()] = parameter.value();
  for (const auto& buffer : module.named_buffers()) tensors[buffer.key()] = buffer.value();
  return tensors;
}

namespace {

using Does = LayerFacts::Does;
using Form = CompressedLayer::Form;

class StaticWalk {
 public:
  StaticWalk(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen)
      : source_(source), scales_(scales), chosen_(chosen), is_int8_(source.facts.size()), is_absorbed_(source.facts.size()) {}

  CompressedContent run() {
    for (size_t i = 0; i < source_.facts.size(); ++i) visit(i);
    return std::move(content_);
  }

 private:
  const LayerGraph::Layer& layer(size_t index) const { return source_.model->layers()[index]; }

  bool reads_int8(size_t index) const {
    const std::vector<int>& inputs = layer(index).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](int input) { return input >= 0 && is_int8_[static_cast<size_t>(input)]; });
  }

  CompressedLayer& add_layer(size_t index, Form form) {
    content_.form.layers.push_back({.name = layer(index).name, .form = form});
    return content_.form.layers.back();
  }

  void visit(size_t index) {
    const LayerFacts& facts = source_.facts[index];
    const bool is_chosen = chosen_.contains(index);
    if (is_absorbed_[index]) {
      add_layer(index, Form::kAbsorbed);
      is_int8_[index] = is_int8_[static_cast<size_t>(layer(index).inputs[0])];
    } else if (is_chosen && facts.does == Does::kBlock) {
      CompressedContent block = compress_dynamic(source_, {index});
      content_.form.layers.push_back(block.form.layers[0]);
      content_.form.tensors.merge(block.form.tensors);
      content_.tensors.merge(block.tensors);
    } else if (is_chosen && (facts.does == Does::kConvolution || facts.does == Does::kProduct)) {
      compress_weights(index);
    } else if (facts.does == Does::kSum && reads_int8(index) && scales_.of(static_cast<int>(facts.last(index)))) {
      CompressedLayer& sum = add_layer(index, Form::kSum);
      sum.relu = facts.relu.has_value();
      sum.output = *scales_.of(static_cast<int>(facts.last(index)));
      absorb(index);
    } else if ((facts.does == Does::kThrough || facts.does == Does::kRelu) && reads_int8(index)) {
      add_layer(index, Form::kThrough);
      is_int8_[index] = true;
    }
  }

  void absorb(size_t index) {
    is_int8_[index] = true;
    for (const std::optional<size_t>& absorbed : {source_.facts[index].norm, source_.facts[index].relu})
      if (absorbed) is_absorbed_[*absorbed] = true;
  }

  void compress_weights(size_t index) {
    const LayerFacts& facts = source_.facts[index];
    const std::optional<CodeScale>&input = scales_.of(layer(index).inputs[0]), &output = scales_.of(static_cast<int>(facts.last(index)));
    if (!input || !output) return;  // The range is not finite: the layer stays in floats.
    CompressedLayer& how = add_layer(index, Form::kStatic);
    how.relu = facts.relu.has_value();
    how.input = *input;
    how.output = *output;
    how.floats = facts.does == Does::kProduct && !has_int8_reader(facts.last(index));
    const std::string name = how.name;
    absorb(index);
    is_int8_[index] = !how.floats;
    if (facts.does == Does::kProduct)
      store_codes(content_, name + ".weight", static_cast<const torch::nn::LinearImpl&>(*layer(index).module).weight);
    else fold_convolution(index, name);
  }

  bool has_int8_reader(size_t index) const {
    const std::vector<size_t>& readers = source_.facts[index].readers;
    return std::any_of(readers.begin(), readers.end(), [&](size_t reader) {
      const Does does = source_.facts[reader].does;
      if (does == Does::kConvolution || does == Does::kProduct) return chosen_.contains(reader);
      return does == Does::kThrough || does == Does::kRelu || does == Does::kSum;
    });
  }

  void fold_convolution(size_t index, const std::string& name) {
    const auto& conv = static_cast<const torch::nn::Conv2dImpl&>(*layer(index).module);
    at::Tensor weight = conv.weight.detach();
    at::Tensor bias = conv.bias.defined() ? conv.bias.detach() : at::zeros({weight.size(0)}, weight.options());
    if (const std::optional<size_t>& norm = source_.facts[index].norm) {
      const NormFactors factors = *norm_factors(layer(*norm).module.get());
      weight = weight * factors.factor.view({-1, 1, 1, 1});
      bias = bias * factors.factor + factors.shift;
    }
    store_codes(content_, name + ".weight", weight);
    content_.tensors[name + ".bias"] = bias.contiguous();
  }

  const CompressionSource& source_;
  const ActivationScales& scales_;
  const LayerSet& chosen_;
  CompressedContent content_;
  std::vector<bool> is_int8_, is_absorbed_;
};

}  // namespace

CompressedContent compress_static(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen) {
  at::NoGradGuard no_grad;
  return StaticWalk(source, scales, chosen).run();
}

namespace {

std::vector<TensorView> views_of(const auto& tensors) {
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors)
    views.push_back({name, dtype_of_tensor(name, tensor), tensor.sizes().vec(), tensor.data_ptr()});
  return views;
}

}  // namespace

FileMetadata metadata_of_export(const TrainedFile& file) {
  FileMetadata metadata = exported_metadata(file);
  metadata["format"] = "pt";
  metadata[exported::kStep] = std::to_string(file.step());
  return metadata;
}

int64_t write_compressed_file(const std::string& out, const CompressedContent& content, FileMetadata metadata) {
  metadata[exported::kCompressed] = to_json(content.form).dump();
  return write_model_file(out, views_of(content.tensors), metadata);
}

int64_t bytes_of_export(const LayerGraph& model, const FileMetadata& metadata) {
  std::vector<NamedTensor> tensors = distinct_parameters(model);
  for (NamedTensor& buffer : distinct_buffers(model)) tensors.push_back(std::move(buffer));
  const std::vector<TensorView> views = views_of(tensors);
  return write_safetensors([](const void*, size_t) {}, "the exported model", views, with_checksums(views, metadata)).bytes;
}

}  // namespace cohort

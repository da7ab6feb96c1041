#include "cohort/compress/compressed_parts.h"

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

void keep_codes(CompressedParts& parts, const std::string& name, const at::Tensor& tensor, int bits, int64_t group) {
  CodedTensor how{.shape = tensor.sizes().vec(), .bits = bits, .group = 0};
  if (group < how.columns()) how.group = group;
  const Codes codes = encode_rows(tensor, bits, how.group);
  parts.form.tensors[name] = how;
  parts.tensors[name] = codes.codes;
  parts.tensors[name + ".scale"] = codes.scales;
}

/// Parameters and buffers of `model` by each of their names.
std::map<std::string, at::Tensor> tensors_of(const LayerGraph& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : model.named_parameters()) tensors[parameter.key()] = parameter.value();
  for (const auto& buffer : model.named_buffers()) tensors[buffer.key()] = buffer.value();
  return tensors;
}

}  // namespace

CompressedParts dynamic_parts(const CompressionSource& source, const LayerSet& chosen) {
  CompressedParts parts;
  for (const size_t index : chosen) {
    const LayerGraph::Layer& layer = source.model->layers()[index];
    parts.form.layers.push_back({.name = layer.name, .form = CompressedLayer::Form::kDynamic});
    if (source.facts[index].does != LayerFacts::Does::kBlock) {
      keep_codes(parts, layer.name + ".weight", *layer.module->named_parameters().find("weight"), 8, 0);
      continue;
    }
    for (const char* product : {"qkv", "out", "up", "down"}) {
      const std::string name = concat(product, ".weight");
      keep_codes(parts, layer.name + "." + name, *layer.module->named_parameters().find(name), 8, 0);
    }
  }
  return parts;
}

CompressedParts coded_parts(const CompressionSource& source, const LayerSet& chosen, int bits, int64_t group) {
  CompressedParts parts;
  for (const size_t index : chosen) {
    const LayerGraph::Layer& layer = source.model->layers()[index];
    for (const auto& parameter : layer.module->named_parameters())
      if (parameter.value().dim() >= 2 && parameter.value().scalar_type() == at::kFloat)
        keep_codes(parts, layer.name + "." + parameter.key(), parameter.value(), bits, group);
  }
  return parts;
}

CompressedParts sparse_parts(const LayerGraph& model) {
  CompressedParts parts;
  for (const auto& [name, tensor] : distinct_parameters(model)) {
    if (tensor.dim() < 2 || tensor.scalar_type() != at::kFloat || tensor.numel() == 0) continue;
    SparseValues sparse = encode_sparse(tensor);
    const int64_t kept = sparse.values.numel();
    if (sparse_bytes(tensor.numel(), kept) >= static_cast<int64_t>(tensor.nbytes())) continue;
    parts.form.tensors[name] = {.shape = tensor.sizes().vec(), .bits = 32, .group = 0, .kept = kept};
    parts.tensors[name] = std::move(sparse.values);
    parts.tensors[name + ".mask"] = std::move(sparse.mask);
  }
  return parts;
}

std::shared_ptr<LayerGraph> complete(const CompressionSource& source, CompressedParts& parts) {
  const std::map<std::string, at::Tensor> originals = tensors_of(*source.model);
  std::map<std::string, at::Tensor> read;
  std::shared_ptr<LayerGraph> model = source.fresh();
  make_compressed(*model, parts.form, [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination) {
    const auto made = parts.tensors.find(name);
    const auto original = originals.find(name);
    if (made == parts.tensors.end() && original == originals.end())
      fail(ErrorCode::kBadInput, "the model has no tensor ", name, ", which its compressed form needs");
    const at::Tensor tensor = (made != parts.tensors.end() ? made->second : original->second).detach().contiguous();
    if (dtype_of_tensor(name, tensor) != dtype || tensor.sizes().vec() != shape)
      fail(ErrorCode::kBadInput, "tensor ", name, " is ", dtype_name(dtype_of_tensor(name, tensor)), " ", shape_text(tensor.sizes().vec()),
           ", and its compressed form needs ", dtype_name(dtype), " ", shape_text(shape));
    if (tensor.numel() > 0) std::memcpy(destination, tensor.data_ptr(), tensor.nbytes());
    read[name] = tensor;
  });
  parts.tensors = std::move(read);
  return model;
}

// Static int8 of a graph of layers (Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
// inference").
//
// Walk the layers in order, and remember of each output whether it is int8:
//   convolution, product  int8 where it was chosen: its batch norm is folded into weight and bias, its ReLU done by the kernel; the range
//   of
//                         the output is that of the last layer it absorbed. A product whose output no int8 layer reads gives floats
//   ReLU, pooling, ...    int8 where their input is
//   sum                   int8 where both inputs are
//   Transformer block     dynamic (dynamic_parts)
//   all else              floats
//
// Folding: a convolution w * x + b followed by factor * y + shift is the convolution (factor w) * x + (factor b + shift).

namespace {

using Does = LayerFacts::Does;
using Form = CompressedLayer::Form;

class StaticWalk {
 public:
  StaticWalk(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen)
      : source_(source), scales_(scales), chosen_(chosen), is_int8_(source.facts.size()), is_absorbed_(source.facts.size()) {}

  CompressedParts run() {
    for (size_t i = 0; i < source_.facts.size(); ++i) visit(i);
    return std::move(parts_);
  }

 private:
  const LayerGraph::Layer& layer(size_t index) const { return source_.model->layers()[index]; }

  bool reads_int8(size_t index) const {
    const std::vector<int>& inputs = layer(index).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](int input) { return input >= 0 && is_int8_[static_cast<size_t>(input)]; });
  }

  CompressedLayer& put(size_t index, Form form) {
    parts_.form.layers.push_back({.name = layer(index).name, .form = form});
    return parts_.form.layers.back();
  }

  void visit(size_t index) {
    const LayerFacts& facts = source_.facts[index];
    const bool is_chosen = chosen_.contains(index);
    if (is_absorbed_[index]) {
      put(index, Form::kAbsorbed);
      is_int8_[index] = is_int8_[static_cast<size_t>(layer(index).inputs[0])];
    } else if (is_chosen && facts.does == Does::kBlock) {
      CompressedParts block = dynamic_parts(source_, {index});
      parts_.form.layers.push_back(block.form.layers[0]);
      parts_.form.tensors.merge(block.form.tensors);
      parts_.tensors.merge(block.tensors);
    } else if (is_chosen && (facts.does == Does::kConvolution || facts.does == Does::kProduct)) {
      put_weights(index);
    } else if (facts.does == Does::kSum && reads_int8(index) && scales_.of(static_cast<int>(facts.last(index)))) {
      CompressedLayer& sum = put(index, Form::kSum);
      sum.relu = facts.relu.has_value();
      sum.output = *scales_.of(static_cast<int>(facts.last(index)));
      absorb(index);
    } else if ((facts.does == Does::kThrough || facts.does == Does::kRelu) && reads_int8(index)) {
      put(index, Form::kThrough);
      is_int8_[index] = true;
    }
  }

  void absorb(size_t index) {
    is_int8_[index] = true;
    for (const std::optional<size_t>& absorbed : {source_.facts[index].norm, source_.facts[index].relu})
      if (absorbed) is_absorbed_[*absorbed] = true;
  }

  void put_weights(size_t index) {
    const LayerFacts& facts = source_.facts[index];
    const std::optional<CodeScale>&input = scales_.of(layer(index).inputs[0]), &output = scales_.of(static_cast<int>(facts.last(index)));
    if (!input || !output) return;  // Not finite: stays floats.
    CompressedLayer& how = put(index, Form::kStatic);
    how.relu = facts.relu.has_value();
    how.input = *input;
    how.output = *output;
    how.floats = facts.does == Does::kProduct && !has_int8_reader(facts.last(index));
    const std::string name = how.name;
    absorb(index);
    is_int8_[index] = !how.floats;
    if (facts.does == Does::kProduct) keep(name + ".weight", static_cast<const torch::nn::LinearImpl&>(*layer(index).module).weight);
    else keep_convolution(index, name);
  }

  bool has_int8_reader(size_t index) const {
    const std::vector<size_t>& readers = source_.facts[index].readers;
    return std::any_of(readers.begin(), readers.end(), [&](size_t reader) {
      const Does does = source_.facts[reader].does;
      if (does == Does::kConvolution || does == Does::kProduct) return chosen_.contains(reader);
      return does == Does::kThrough || does == Does::kRelu || does == Does::kSum;
    });
  }

  void keep_convolution(size_t index, const std::string& name) {
    const auto& conv = static_cast<const torch::nn::Conv2dImpl&>(*layer(index).module);
    at::Tensor weight = conv.weight.detach();
    at::Tensor bias = conv.bias.defined() ? conv.bias.detach() : at::zeros({weight.size(0)}, weight.options());
    if (const std::optional<size_t>& norm = source_.facts[index].norm) {
      const NormFactors factors = *norm_factors(layer(*norm).module.get());
      weight = weight * factors.factor.view({-1, 1, 1, 1});
      bias = bias * factors.factor + factors.shift;
    }
    keep(name + ".weight", weight);
    parts_.tensors[name + ".bias"] = bias.contiguous();
  }

  void keep(const std::string& name, const at::Tensor& weight) {
    const Codes codes = encode_rows(weight, 8, 0);
    parts_.form.tensors[name] = {.shape = weight.sizes().vec(), .bits = 8, .group = 0};
    parts_.tensors[name] = codes.codes;
    parts_.tensors[name + ".scale"] = codes.scales;
  }

  const CompressionSource& source_;
  const ActivationScales& scales_;
  const LayerSet& chosen_;
  CompressedParts parts_;
  std::vector<bool> is_int8_, is_absorbed_;
};

}  // namespace

CompressedParts static_parts(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen) {
  at::NoGradGuard no_grad;
  return StaticWalk(source, scales, chosen).run();
}

namespace {

TensorView view_of(const std::string& name, const at::Tensor& tensor) {
  return {name, dtype_of_tensor(name, tensor), tensor.sizes().vec(), tensor.data_ptr()};
}

}  // namespace

FileMetadata metadata_of_export(const TrainedFile& file) {
  FileMetadata metadata = exported_metadata(file);
  metadata["format"] = "pt";
  metadata[exported::kStep] = std::to_string(file.step());
  return metadata;
}

int64_t write_compressed_file(const std::string& out, const CompressedParts& parts, FileMetadata metadata) {
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : parts.tensors) views.push_back(view_of(name, tensor));
  metadata[exported::kCompressed] = to_json(parts.form).dump();
  return write_model_file(out, views, metadata);
}

int64_t bytes_of_export(const LayerGraph& model, const FileMetadata& metadata) {
  std::vector<TensorView> views;
  std::vector<NamedTensor> tensors = distinct_parameters(model);
  for (NamedTensor& buffer : distinct_buffers(model)) tensors.push_back(std::move(buffer));
  for (const auto& [name, tensor] : tensors) views.push_back(view_of(name, tensor));
  return write_safetensors([](const void*, size_t) {}, "the exported model", views, with_checksums(views, metadata)).bytes;
}

}  // namespace cohort

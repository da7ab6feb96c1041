#include "cohort/compress/compressed_parts.h"

#include <cstring>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/model/parameter_places.h"

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

}  // namespace cohort

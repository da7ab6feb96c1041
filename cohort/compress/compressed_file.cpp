#include "cohort/compress/compressed_file.h"

#include <utility>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/infer/trained_file.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/model/parameter_places.h"

namespace cohort {
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

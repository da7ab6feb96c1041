#pragma once
// The content of a compressed model file: how it is made from a trained model, how it becomes a model again, and how it is written.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/compress/layer_facts.h"
#include "cohort/infer/compressed/compressed_form.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

class LayerGraph;

struct CompressedContent {
  CompressedForm form = {};
  std::map<std::string, at::Tensor> tensors = {};  ///< Keyed by the names in the file.
};

/// A trained model whose layers are compressed.
struct CompressionSource {
  std::shared_ptr<LayerGraph> model;
  std::vector<LayerFacts> facts = {};
  std::function<std::shared_ptr<LayerGraph>()> fresh;  ///< Returns another model of the same structure, with any weights.
};

/// Layers by index.
using LayerSet = std::set<size_t>;

// Each function compresses the layers `chosen`; all others keep their floats.
/// Int8 convolutions, linear layers and sums with scales known beforehand; Transformer blocks with dynamic ones.
CompressedContent compress_static(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen);
/// Int8 matrix products of linear layers and Transformer blocks.
CompressedContent compress_dynamic(const CompressionSource& source, const LayerSet& chosen);
/// Stores every matrix and kernel of the chosen layers as codes, which are decoded when the file is loaded.
CompressedContent compress_weights(const CompressionSource& source, const LayerSet& chosen, int bits, int64_t group);

/// Every matrix and kernel that takes fewer bytes without its zeros.
CompressedContent compress_sparse(const LayerGraph& model);

/// Builds the model as the loader does, and reduces `content` to the tensors that it reads, which the file has to hold.
std::shared_ptr<LayerGraph> build_compressed(const CompressionSource& source, CompressedContent& content);

/// Bytes of the tensors that the file holds for a layer.
int64_t layer_bytes(const CompressedContent& content, const std::string& layer);
/// Bytes of the parameters and buffers of a module; 0 for null.
int64_t module_bytes(const torch::nn::Module* module);
/// Parameters and buffers of a module by every name that they have.
std::map<std::string, at::Tensor> named_tensors(const torch::nn::Module& module);

// Writing a compressed model. Format: docs/formats/compressed.md.

/// What `cohort checkpoint export` writes into the header of a file.
using FileMetadata = std::map<std::string, std::string>;
FileMetadata metadata_of_export(const TrainedFile& file);

/// Writes `out` atomically and returns its bytes. Error(kFailed) where the system refuses; then no file is left.
int64_t write_compressed_file(const std::string& out, const CompressedContent& content, FileMetadata metadata);
/// Bytes of the file that `cohort checkpoint export` would write for the model.
int64_t bytes_of_export(const LayerGraph& model, const FileMetadata& metadata);

}  // namespace cohort

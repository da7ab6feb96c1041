#pragma once
// A compressed model in memory: what a file of it holds, and the model that such a file makes.

#include <ATen/core/Tensor.h>

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

struct CompressedParts {
  CompressedForm form;
  std::map<std::string, at::Tensor> tensors;  ///< By the names in the file.
};

/// A trained model that layers are taken from; `fresh` gives another one of the same structure, whose weights may be any.
struct CompressionSource {
  std::shared_ptr<LayerGraph> model;
  std::vector<LayerFacts> facts;
  std::function<std::shared_ptr<LayerGraph>()> fresh;
};

/// Layers by index.
using LayerSet = std::set<size_t>;

// Which forms and codes the layers `chosen` get; all others stay as they are.
/// int8 convolutions, products and sums between known scales; Transformer blocks with dynamic ones.
CompressedParts static_parts(const CompressionSource& source, const ActivationScales& scales, const LayerSet& chosen);
/// int8 products of products and Transformer blocks.
CompressedParts dynamic_parts(const CompressionSource& source, const LayerSet& chosen);
/// Every matrix and kernel of the chosen layers is kept as codes and decoded when it is loaded.
CompressedParts coded_parts(const CompressionSource& source, const LayerSet& chosen, int bits, int64_t group);

/// Every matrix and kernel whose file is smaller without its zeros.
CompressedParts sparse_parts(const LayerGraph& model);

/// Makes the model, as the loader does, and adds to `parts` every tensor that it reads: what a file has to hold.
std::shared_ptr<LayerGraph> complete(const CompressionSource& source, CompressedParts& parts);

// Writing a compressed model. Format: docs/formats/compressed.md.

/// What the header says: all that the source's export would, with `metadata` over it.
using FileMetadata = std::map<std::string, std::string>;
FileMetadata metadata_of_export(const TrainedFile& file);

/// Writes to a temporary name, then in the place of `out`; returns its bytes. Error(kFailed) where the system refuses; nothing is left
/// then.
int64_t write_compressed_file(const std::string& out, const CompressedParts& parts, FileMetadata metadata);
/// Bytes of the file that `cohort checkpoint export` would write of the model.
int64_t bytes_of_export(const LayerGraph& model, const FileMetadata& metadata);

}  // namespace cohort

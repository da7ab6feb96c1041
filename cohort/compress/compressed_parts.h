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

#include "cohort/compress/calibration/activations.h"
#include "cohort/compress/layer_facts.h"
#include "cohort/infer/compressed/compressed_form.h"

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

}  // namespace cohort

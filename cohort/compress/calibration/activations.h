#pragma once
// What the layers of a model give for real samples: what ranges of activations are chosen from.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "cohort/compress/calibration/range_methods.h"
#include "cohort/infer/compressed/compressed_form.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

/// The inputs of layer `index`, where the model got `input` and its layers gave `outputs`.
LayerGraph::Inputs inputs_of(const LayerGraph& model, size_t index, const at::Tensor& input, const std::vector<at::Tensor>& outputs);
/// What each layer gives for `input`.
std::vector<at::Tensor> run_layers(const LayerGraph& model, const at::Tensor& input);

/// Scales of the codes of a model's input and of each layer's output; none where that is no floats, or not finite.
struct ActivationScales {
  std::optional<CodeScale> input;
  std::vector<std::optional<CodeScale>> outputs;

  const std::optional<CodeScale>& of(int layer) const { return layer < 0 ? input : outputs.at(static_cast<size_t>(layer)); }
};

/// Codes 0 to 127 over `range`; zero has a code of its own.
CodeScale scale_of_range(const ValueRange& range);

/// Runs `model`, in eval mode, on each of `batches` twice: for the least and largest values, then for how often there is which.
ActivationScales observe_activations(const LayerGraph& model, const std::vector<at::Tensor>& batches, const RangeMethod& method);

}  // namespace cohort

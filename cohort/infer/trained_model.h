#pragma once
// A trained model ready to be called: load("model.safetensors") from a file that `cohort checkpoint export` wrote, or from a run folder.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/description.h"

namespace cohort {

class LayerGraph;

/// A handle: copies share the module. Not thread-safe, like LayerGraph.
class COHORT_API TrainedModel {
 public:
  /// For load(); `module` has the weights.
  TrainedModel(std::shared_ptr<LayerGraph> module, DataDescription data, std::string model, int64_t step);

  /// The output for a batch {samples, ...data().shape}, in eval mode and without gradients: one score a class, one number a target of a
  /// regression, or {samples, context, 256} for bytes of text. Pictures must be normalised() first.
  at::Tensor operator()(const at::Tensor& input) const;
  /// Normalises values in the units of the data as the training did: pictures {samples, channels, height, width} from 0 to 1.
  at::Tensor normalised(const at::Tensor& raw) const;

  LayerGraph& module() const { return *module_; }
  LayerGraph* operator->() const { return module_.get(); }
  const DataDescription& data() const { return data_; }  ///< Sizes, names of the classes, normalisation.
  const std::string& model() const { return model_; }    ///< "NAME:key=value,..."
  int64_t step() const { return step_; }

 private:
  std::shared_ptr<LayerGraph> module_;
  DataDescription data_;
  std::string model_;
  int64_t step_;
};

/// `path`: FILE.safetensors of `cohort checkpoint export`, or a run folder, of which `which` chooses the checkpoint: "latest", "best" or a
/// step number. A model that is not built in must be registered (COHORT_MODEL). No code of the file is run. Error(kBadInput) in one line
/// for a path that is missing, damaged, or of an unknown model.
COHORT_API TrainedModel load(const std::string& path, const std::string& which = "latest");

/// load() for a file that `cohort compress` wrote, and only for such files: its layers use LibTorch's int8 kernels where the file says so.
/// Inputs and outputs are floats. Error(kBadInput) as in load(), where this LibTorch has no such kernels, and where the file is not
/// compressed.
COHORT_API TrainedModel load_compressed(const std::string& path);

}  // namespace cohort

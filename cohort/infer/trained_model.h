#pragma once
// A trained model, ready to be called: load("model.safetensors") of a file that `cohort checkpoint export` wrote, or of a run folder.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/description.h"

namespace cohort {

class LayerGraph;

/// A handle: copies share the module. As LayerGraph not thread-safe.
class COHORT_API TrainedModel {
 public:
  /// What load() makes; `module` has the weights.
  TrainedModel(std::shared_ptr<LayerGraph> module, DataDescription data, std::string model, int64_t step);

  /// The output for a batch {samples, ...data().shape}, in eval mode and without gradients: one score a class, one number a target of a
  /// regression, or {samples, context, 256} for bytes of text. Pictures are given as normalised() makes them.
  at::Tensor operator()(const at::Tensor& input) const;
  /// Floats as the training had them, of values in the units of the data: pictures {samples, channels, height, width} from 0 to 1.
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

/// `path`: FILE.safetensors as `cohort checkpoint export` writes it, or a run folder, of whose checkpoints `which` says "latest", "best" or
/// the number of a step. A model that is not built in must be registered (COHORT_MODEL). Nothing of the file is run. Error(kBadInput) in
/// one line for what is missing, damaged, or of a model that is not known here.
COHORT_API TrainedModel load(const std::string& path, const std::string& which = "latest");

/// The same of a FILE.safetensors that `cohort compress` wrote, and of no other: its layers compute with LibTorch's int8 kernels where the
/// file says so. Inputs and outputs are floats as ever. load() takes such files too. Error(kBadInput) as load() has it, where this LibTorch
/// has no such kernels, and where the file is not compressed.
COHORT_API TrainedModel load_compressed(const std::string& path);

}  // namespace cohort

#pragma once
// What layers of a model gave in its newest forward.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace cohort {

class LayerGraph;

/// Puts itself behind functions of `model`, which may outlive it. One thread.
class LayerTaps {
 public:
  /// Error(kBadInput) that begins with `option` for a layer that the model does not have.
  LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option);

  /// In the order of the names; undefined where no forward has been since the last call. Kept no longer here.
  std::vector<at::Tensor> take() const;

 private:
  std::shared_ptr<std::vector<at::Tensor>> outputs_;
};

}  // namespace cohort

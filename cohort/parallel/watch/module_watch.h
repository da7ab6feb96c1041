#pragma once
// Whether a module still has the parameters that it had: fine-tuning unfreezes some, gets a new head, converts them.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// The module must outlive it. One thread.
class ModuleWatch {
 public:
  explicit ModuleWatch(const torch::nn::Module& module);
  /// Whether a parameter was registered, removed, replaced, frozen, unfrozen, or has another type, device or shape since
  /// remember(). Some ten nanoseconds a parameter; values are not looked at.
  bool changed() const;
  /// For strategies that cannot take a parameter in later: Error(kBadInput) naming one that is trained now and was not, or was not there.
  void check_trained(const std::string& owner) const;
  /// Whether a buffer was registered, removed or replaced.
  bool buffers_changed() const;
  void remember_buffers();
  /// The module as it is now, buffers included.
  void remember();
  /// For a message: "parameter fc.weight Float [10, 3] trained came, fc.weight Float [5, 3] trained went"; the first of each, "" for none.
  std::string difference() const;

 private:
  const torch::nn::Module& module_;
  std::vector<uint64_t> seen_;           ///< Two words a parameter, in the order of the modules; repeated where it is registered twice.
  std::vector<NamedTensor> parameters_;  ///< Held, so that no new tensor is taken for an old one at the same address.
  std::vector<const void*> trained_;     ///< Sorted.
  std::vector<at::Tensor> buffers_;      ///< Of all modules, in their order.
  std::vector<std::string> lines_;       ///< Of the signature.
};

}  // namespace cohort

#pragma once
// Detects what the program does to a model that is trained: to its parameters' memory, and to the list of them.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Identifies the memory of a tensor, also where it has none at the moment.
inline const void* storage_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

/// Counts the in-place writes to `tensor`; 0 where it has no count: made in InferenceMode, also after set_data().
inline uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

// Detects in-place writes to parameters whose memory a strategy has laid out, other memory (torch::load(), set_data()), and a change of
// type, device or shape (Module::to()). Costs a few comparisons per parameter.

/// One thread.
class WeightWatch {
 public:
  /// `owner`: the strategy's name in messages.
  explicit WeightWatch(std::string owner) : owner_(std::move(owner)) {}

  /// Adds a parameter at its final address. `is_placed`: in the strategy's memory, so that other memory is noticed.
  void add(const NamedTensor& parameter, bool is_placed = true);

  /// Error(kBadInput) naming the first parameter whose type, device or shape has changed, or whose new memory is shared with another
  /// parameter.
  void check() const;
  /// Whether the program assigned other memory.
  bool is_replaced(size_t index) const;
  bool any_replaced() const;
  /// Whether an operator wrote to it in place since remember() or restore() or, where it is not placed, it got other memory. Writes through
  /// data() and data_ptr() are not detected.
  bool is_written(size_t index) const;
  /// Index of the first parameter that was written to in its original memory, or -1.
  int64_t first_written() const;
  void remember();

  /// An alias of the parameter's original memory.
  const at::Tensor& place(size_t index) const { return held_[index].place; }
  /// Points the parameter back to its original memory and returns the values that the program assigned.
  at::Tensor restore(size_t index);
  /// For a strategy with whole weights: copies the values of all replaced parameters to their original memory.
  void take_over();

 private:
  struct Held {
    std::string name;
    at::Tensor parameter, place;
    bool is_placed = true;
    uint32_t version = 0;
    const void* storage = nullptr;
  };
  std::string owner_;
  std::vector<Held> held_;
};

/// Checksum of the elements' bits; never 0. Copies from a device to the host.
int64_t checksum(const at::Tensor& tensor);

// Detects changes of a module's list of parameters: fine-tuning unfreezes, replaces or converts some.

/// The module must outlive it. One thread.
class ModuleWatch {
 public:
  explicit ModuleWatch(const torch::nn::Module& module);
  /// Whether a parameter was registered, removed, replaced, frozen, unfrozen, or has another type, device or shape since remember(). Some
  /// ten nanoseconds per parameter; values are not compared.
  bool changed() const;
  /// For strategies that cannot add parameters: Error(kBadInput) naming one that is trained now and was not.
  void check_trained(const std::string& owner) const;
  /// Whether a buffer was registered, removed or replaced.
  bool buffers_changed() const;
  void remember_buffers();
  /// Remembers the present state, including buffers.
  void remember();
  /// Text for messages: "parameter fc.weight Float [10, 3] trained came, fc.weight Float [5, 3] trained went"; the first of each, or "".
  std::string difference() const;

 private:
  const torch::nn::Module& module_;
  std::vector<uint64_t> seen_;           ///< Two words per registered parameter, in module order.
  std::vector<NamedTensor> parameters_;  ///< Held, so that addresses are not reused.
  std::vector<const void*> trained_;     ///< Sorted.
  std::vector<at::Tensor> buffers_;      ///< In module order.
  std::vector<std::string> lines_;       ///< Lines of the signature.
};

}  // namespace cohort

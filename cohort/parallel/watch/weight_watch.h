#pragma once
// What a program's own code does to a model that is trained: to its parameters' memory, and to the list of them.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

// What a program's own code did to parameters whose memory a strategy has laid out: wrote to them in place, gave them other memory
// (torch::load(), set_data()), or another type, device or shape (Module::to()). Told by a few comparisons a parameter.

/// One thread.
class WeightWatch {
 public:
  /// `owner` is the strategy's name, for messages.
  explicit WeightWatch(std::string owner) : owner_(std::move(owner)) {}

  /// The parameter lies where it is to lie. `is_placed`: in the strategy's memory, so that other memory is noticed.
  void add(const NamedTensor& parameter, bool is_placed = true);

  /// Error(kBadInput) naming the first parameter whose type, device or shape is no longer what it was, or that shares its new memory with
  /// another parameter.
  void check() const;
  /// Whether the program gave it other memory.
  bool is_replaced(size_t index) const;
  bool any_replaced() const;
  /// Whether an operator wrote to it in place since remember() or restore(), or, where it is not placed, it was given other memory. Writes
  /// through data() and data_ptr() are not seen.
  bool is_written(size_t index) const;
  /// Index of the first one that is written to in the memory where it is to lie, or -1.
  int64_t first_written() const;
  void remember();

  /// An alias of the memory where it is to lie.
  const at::Tensor& place(size_t index) const { return held_[index].place; }
  /// Points the parameter back there and returns the values that the program gave it.
  at::Tensor restore(size_t index);
  /// Of a strategy with whole weights: the values of all replaced parameters go to their places.
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

/// Of the elements' bits, in order; never 0. What lies on a device is copied to the host.
int64_t checksum(const at::Tensor& tensor);

// Whether a module still has the parameters that it had: fine-tuning unfreezes some, gets a new head, converts them.

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

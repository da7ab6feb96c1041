#pragma once
// Observes when backward() calls begin and how they end: by returning, or by an exception, which no hook of LibTorch reports.
//
// LibTorch lets a program install its own engine in front of autograd's (set_default_engine_stub(), made for Python). Ours forwards every
// call and records its begin and end. A backward() inside another one (recomputation) belongs to the outer one.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <string>

namespace cohort {

struct NamedTensor;

/// Created, used and destroyed by one thread, except enter(), which gradient hooks of a device's thread may call.
class BackwardWatch {
 public:
  /// Callbacks around a backward() that leaves gradients in `.grad`, of this thread or of the one that entered last. backward() throws what
  /// they throw.
  struct Calls {
    std::function<void()> at_end;                                           ///< After each that was entered, in the caller's thread.
    std::function<void(const torch::autograd::edge_list& roots)> at_begin;  ///< Before each, whether entered or not.
    std::function<void(const std::string&)> at_failure;                     ///< Gets the text of a LibTorch error; may throw a better one.
    std::function<void()> at_return;  ///< After each that succeeded, after every at_end; the last watch first.
  };
  explicit BackwardWatch(Calls calls);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;

  /// Called by gradient hooks. True for the first one of a backward(), which is watched from then on.
  bool enter();
  /// Called by a hook in front of a gradient: whether the running backward() leaves gradients in `.grad`, unlike torch::autograd::grad().
  bool is_accumulating() const;
  /// Whether the innermost engine call of this thread is torch::autograd::grad(), which returns gradients to its caller.
  static bool returns_gradients();
  /// Whether an exception ended an entered backward() since clear().
  bool has_failed() const;
  void clear();
  /// Whether the entered backward() builds a graph of the gradients (create_graph).
  bool creates_graph() const;

 private:
  struct Record;
  struct Backward;
  class WatchedEngine;
  struct Running;
  std::shared_ptr<Record> record_;
};

// Hooks that run when a parameter's gradient of one backward() is complete in `.grad`. LibTorch has one per parameter.

/// Error(kBadInput), naming the parameter, where it has a hook.
void check_no_gradient_hook(const NamedTensor& parameter);
/// Runs in backward(), without a graph, in the thread that computed the gradient. Errors as check_no_gradient_hook().
void set_gradient_hook(const NamedTensor& parameter, std::function<void(const at::Tensor& parameter)> callback);
void remove_gradient_hook(const NamedTensor& parameter);

}  // namespace cohort

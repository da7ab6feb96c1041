#pragma once
// When backward() calls begin and how they end: by returning, or by an exception, which no hook of LibTorch tells.
//
// LibTorch lets a program put its own engine in front of autograd's (set_default_engine_stub(), made for Python). Ours hands every call on
// unchanged and notes its beginning and its end. A backward() inside another one (recomputation) belongs to the outer one.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <string>

namespace cohort {

struct NamedTensor;

/// Made, used and destroyed by one thread, but for enter(), which gradient hooks of a device's thread may call.
class BackwardWatch {
 public:
  /// What runs around a backward() that leaves gradients in `.grad`, of this thread or of the one that entered last. What they throw
  /// backward() throws.
  struct Calls {
    std::function<void()> at_end;  ///< After each that was entered, before it returns to its caller, in whose thread it runs.
    std::function<void(const torch::autograd::edge_list& roots)> at_begin;  ///< Before each, entered later or not.
    std::function<void(const std::string&)>
        at_failure;                   ///< Gets the text of an error of LibTorch's that ended one; may throw a better one.
    std::function<void()> at_return;  ///< After each, entered or not, that succeeded, behind every at_end; the watch made last comes first.
  };
  explicit BackwardWatch(Calls calls);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;

  /// From a gradient's hook. True for the first one of a backward(), which is watched from then on.
  bool enter();
  /// From a hook in front of a gradient: whether the backward() that runs leaves gradients in `.grad`, as torch::autograd::grad() does not.
  bool is_accumulating() const;
  /// Whether the innermost call of the engine in this thread is torch::autograd::grad(), whose gradients are its caller's.
  static bool returns_gradients();
  /// Whether an exception ended a backward() that was entered, since clear().
  bool has_failed() const;
  void clear();
  /// Whether the backward() that was entered builds a graph of the gradients (create_graph).
  bool creates_graph() const;

 private:
  struct Record;
  struct Backward;
  class WatchedEngine;
  struct Running;
  std::shared_ptr<Record> record_;
};

// What runs when a parameter's gradient of one backward() is complete in `.grad`. LibTorch has room for one such hook a parameter.

/// Error(kBadInput), naming the parameter, where it has a hook.
void check_no_gradient_hook(const NamedTensor& parameter);
/// Runs in backward(), without a graph, on the thread that made the gradient. Errors as check_no_gradient_hook().
void set_gradient_hook(const NamedTensor& parameter, std::function<void(const at::Tensor& parameter)> callback);
void remove_gradient_hook(const NamedTensor& parameter);

}  // namespace cohort

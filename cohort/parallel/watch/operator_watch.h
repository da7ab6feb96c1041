#pragma once
// Observes operators on a strategy's tensors with a fallback kernel of the dispatcher: uses of weights that are not whole, and of gradients
// that the program must not access.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

// Reports which watched tensors an operator is about to access, before it runs: a substitute for forward hooks, which C++ modules do not
// have.

/// While it lives, `before_use` is called before every operator of its thread (in forward and backward, with or without gradients, under
/// autocast), and of a device's thread that runs its backward(), with the ids of the watched tensors among the arguments. Views, and
/// tensors such as data() that share the memory, count too. `written` are those that the operator writes to. When `before_use` throws the
/// operator does not run. Operators called by `before_use` are not reported.
///
/// Accesses through data_ptr() without an operator are not seen; where the memory was taken away LibTorch throws there ("data is not
/// allocated yet"). Several watches may live in one thread; a tensor is in one of them at most. Created, used and destroyed by one thread.
class UseWatch {
 public:
  using Callback = std::function<void(const std::vector<int>& ids, const std::vector<int>& written)>;

  explicit UseWatch(Callback before_use);
  ~UseWatch();
  UseWatch(const UseWatch&) = delete;
  UseWatch& operator=(const UseWatch&) = delete;

  void add(const at::Tensor& tensor, int id);

  const Callback& callback() const { return before_use_; }

 private:
  Callback before_use_;
  std::vector<const void*> storages_;
};

/// Suspends the watch of this thread's operators.
class UnwatchedScope {
 public:
  UnwatchedScope();
  ~UnwatchedScope();
  UnwatchedScope(const UnwatchedScope&) = delete;

 private:
  bool was_excluded_;
};

// Stand-ins in `.grad` while a rank has at most a part of the gradient, which must not be read or changed.

/// A tensor of the parameter's shape and type without memory. Every operator on it, or on a tensor with the same storage such as data(),
/// throws Error(kBadInput) with advice, data_ptr() throws c10::Error; zero_grad() of a module or an optimizer works.
at::Tensor gradient_stand_in(const at::Tensor& parameter);
bool is_stand_in(const at::Tensor& gradient);
/// Whether it is the stand-in or a detach() of it.
bool is_of(const at::Tensor& gradient, const at::Tensor& stand_in);
/// Whether the program has dropped the gradient: `now` is undefined, or zero_grad(/*set_to_none=*/false) was called on the stand-in.
bool has_dropped(const at::Tensor& stand_in, const at::Tensor& now);

/// Hides the gradients of a model between backward() and the code that needs them. One thread.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  /// Drops stand-ins left by an object that ended between backward() and step().
  explicit HiddenGradients(const std::vector<NamedTensor>& parameters);

  /// Replaces gradients by stand-ins.
  void hide();
  /// Restores the gradients that the program has not dropped. Returns the name of the first dropped one, or "". Error(kBadInput) where the
  /// program has set others.
  std::string show();

 private:
  struct Place {
    NamedTensor parameter;
    at::Tensor stand_in;  ///< Created on demand.
    at::Tensor hidden;
  };
  std::vector<Place> places_;
  bool is_hiding_ = false;
};

}  // namespace cohort

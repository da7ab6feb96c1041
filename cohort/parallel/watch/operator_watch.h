#pragma once
// What operators do to tensors of a strategy, seen by a fallback kernel of the dispatcher: uses of weights that are not whole, and of
// gradients that are nobody's to read.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

// Says, before any LibTorch operator runs, which watched tensors it is about to touch. The substitute for forward hooks, which C++ modules
// do not have.

/// While it lives, every operator that its thread calls (in forward, in backward, with or without gradients, under autocast), or that the
/// autograd engine calls in a device's thread for its backward(), is preceded in the calling thread by
/// a call of `before_use` with the ids of the watched tensors among its arguments; views of a watched tensor count, for they share its
/// memory, and so do tensors like data() that share it in secret. `written` are those among them that the operator writes to. `before_use`
/// may throw: the operator then does not run. It is not called for operators that it calls itself.
///
/// Not seen: code that reads data_ptr() without an operator. Where the memory was taken away LibTorch throws there ("data is not allocated
/// yet"). Several watches may live in one thread; a tensor is in one of them at most. Made, used and destroyed by one thread.
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

/// Operators of this thread are not watched while it lives.
class UnwatchedScope {
 public:
  UnwatchedScope();
  ~UnwatchedScope();
  UnwatchedScope(const UnwatchedScope&) = delete;

 private:
  bool was_excluded_;
};

// What lies in `.grad` while a rank has a part of the gradient at most, which is nobody's to read or to change.

/// A tensor of the parameter's shape and type without memory. Every operator on it, or on what it shares its storage with as data() does,
/// throws Error(kBadInput) with what to do instead, data_ptr() a c10::Error; zero_grad() of a module or an optimizer works.
at::Tensor gradient_stand_in(const at::Tensor& parameter);
bool is_stand_in(const at::Tensor& gradient);
/// Whether it is the stand-in, or what detach() makes of it.
bool is_of(const at::Tensor& gradient, const at::Tensor& stand_in);
/// Whether the program has dropped the gradient: `now` is undefined, or is what zero_grad(/*set_to_none=*/false) makes of the stand-in.
bool has_dropped(const at::Tensor& stand_in, const at::Tensor& now);

/// Takes the gradients of a model away between a backward() and what needs them. One thread.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  /// Stand-ins that another one has left behind are dropped: it went between backward() and step().
  explicit HiddenGradients(const std::vector<NamedTensor>& parameters);

  /// Puts stand-ins in their places.
  void hide();
  /// Puts those back that the program has not dropped; the name of the first that it has, or "". Error(kBadInput) where the program put
  /// others in their places.
  std::string show();

 private:
  struct Place {
    NamedTensor parameter;
    at::Tensor stand_in;  ///< Made when first needed.
    at::Tensor hidden;
  };
  std::vector<Place> places_;
  bool is_hiding_ = false;
};

}  // namespace cohort

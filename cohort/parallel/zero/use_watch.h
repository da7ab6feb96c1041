#pragma once
// Says, before any LibTorch operator runs, which watched tensors it is about to touch. The substitute for forward hooks, which C++ modules
// do not have.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace cohort {

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

}  // namespace cohort

#pragma once
// How LibTorch holds the nodes of an autograd graph: by c10::intrusive_ptr, or, in 2.11, by std::shared_ptr.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace cohort {

using NodePointer = decltype(torch::autograd::Edge::function);
inline constexpr bool kSharesNodes = std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>;
using WeakNodePointer =
    std::conditional_t<kSharesNodes, std::weak_ptr<torch::autograd::Node>, c10::weak_intrusive_ptr<torch::autograd::Node>>;
/// To a class derived from Node.
template <typename T>
using NodePointerTo = std::conditional_t<kSharesNodes, std::shared_ptr<T>, c10::intrusive_ptr<T>>;

template <typename T, typename... Arguments>
NodePointerTo<T> make_node(Arguments&&... arguments) {
  if constexpr (kSharesNodes) return std::make_shared<T>(std::forward<Arguments>(arguments)...);
  else return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

}  // namespace cohort

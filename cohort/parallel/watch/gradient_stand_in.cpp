// LibTorch dispatches an operator by the keys of its arguments. A stand-in has one key more, above all others, whose fallback kernel
// throws; it lets pass what zero_grad() calls. The key is one that LibTorch's own tests of such tensors use; nothing else in LibTorch does.
//
// Versions of tensors would not do: clip_grad_norm_() writes through data(), which has a version of its own.
#include "cohort/parallel/watch/gradient_stand_in.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_set>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr const char* kInstead =
    "ranks have parts of it there, which step() of Parallel brings together. To clip, call step({.clip_norm = 1}); the norm is what "
    "step({.clip_norm = INFINITY}) returns; to scale, multiply the loss; whatever else reads or changes gradients goes with layout dp, no "
    "optimizer in ParallelOptions and step(optimizer), after a backward() that is not in accumulate()";
constexpr c10::DispatchKey kStandIn = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Storages of stand-ins that zero_grad(/*set_to_none=*/false) has set to zero.
struct Zeroed {
  std::mutex mutex;
  std::unordered_set<const void*> storages;
  static Zeroed& all() {
    static Zeroed* const zeroed = new Zeroed;
    return *zeroed;
  }
};

const void* storage_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

void on_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  if (name == "aten::zero_") {
    const std::lock_guard lock(Zeroed::all().mutex);
    Zeroed::all().storages.insert(storage_of(stack->back().toTensor()));
    return;
  }
  if (name == "aten::detach" || name == "aten::detach_") {
    const c10::impl::ExcludeDispatchKeyGuard as_usual(kStandIn);
    return op.callBoxed(stack);
  }
  fail(ErrorCode::kBadInput, name, " of a gradient between backward() and step(): ", kInstead);
}

/// For the life of the process; without effect on other tensors.
void register_fallback() {
  [[gnu::used]] static const torch::Library* const library = [] {  // Used: so that leak checkers see who holds it.
    auto* made = new torch::Library(torch::Library::IMPL, "_", kStandIn, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
    return made;
  }();
}

}  // namespace

at::Tensor gradient_stand_in(const at::Tensor& parameter) {
  register_fallback();
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(parameter.scalar_type()));
  c10::StorageImpl& storage = *nothing.storage().unsafeGetStorageImpl();
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kInstead);
  {
    const std::lock_guard lock(Zeroed::all().mutex);
    Zeroed::all().storages.erase(&storage);  // Of one that had this address.
  }
  at::Tensor stand_in =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(nothing.storage()), nothing.key_set().add(kStandIn), nothing.dtype());
  stand_in.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
  return stand_in;
}

bool is_stand_in(const at::Tensor& gradient) { return gradient.defined() && gradient.key_set().has(kStandIn); }

bool is_of(const at::Tensor& gradient, const at::Tensor& stand_in) {
  return gradient.has_storage() && storage_of(gradient) == storage_of(stand_in);
}

bool has_dropped(const at::Tensor& stand_in, const at::Tensor& now) {
  if (!now.defined()) return true;
  if (!is_of(now, stand_in)) return false;
  const std::lock_guard lock(Zeroed::all().mutex);
  return Zeroed::all().storages.contains(storage_of(stand_in));
}

HiddenGradients::HiddenGradients(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    if (is_stand_in(parameter.tensor.grad())) parameter.tensor.mutable_grad() = at::Tensor();
    places_.push_back({parameter, {}, {}});
  }
}

void HiddenGradients::hide() {
  is_hiding_ = true;
  for (Place& place : places_) {
    at::Tensor& gradient = place.parameter.tensor.mutable_grad();
    if (!gradient.defined() || is_stand_in(gradient)) continue;  // Of ZeRO.
    if (!place.stand_in.defined()) place.stand_in = gradient_stand_in(place.parameter.tensor);
    place.hidden = std::exchange(gradient, place.stand_in);
  }
}

std::string HiddenGradients::show() {
  std::string dropped;
  if (!std::exchange(is_hiding_, false)) return dropped;
  for (Place& place : places_) {
    at::Tensor& gradient = place.parameter.tensor.mutable_grad();
    if (!place.hidden.defined()) {
      if (gradient.defined() && !is_stand_in(gradient))
        fail(ErrorCode::kBadInput, "the program gave ", place.parameter.name,
             " a gradient of its own, or called backward() in another thread than the one that made Parallel; ranks would not share it: "
             "make "
             "a loss of it, (gradient * parameter).sum(), and call backward() of that");
      continue;
    }
    at::Tensor hidden = std::exchange(place.hidden, {});
    if (gradient.is_same(place.stand_in) && !has_dropped(place.stand_in, gradient)) {
      gradient = std::move(hidden);
      continue;
    }
    const bool is_dropped = has_dropped(place.stand_in, gradient);
    if (is_dropped) gradient = at::Tensor();
    place.stand_in = at::Tensor();
    if (!is_dropped)
      fail(ErrorCode::kBadInput, "the program put another tensor in the place of the gradient of ", place.parameter.name,
           " between backward() and step(), which ranks would not share; that goes with layout dp, no optimizer in ParallelOptions and "
           "step(optimizer), after a backward() that is not in accumulate()");
    if (dropped.empty()) dropped = place.parameter.name;
  }
  return dropped;
}

}  // namespace cohort

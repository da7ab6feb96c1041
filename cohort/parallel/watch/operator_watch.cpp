#include "cohort/parallel/watch/operator_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

// Watching the operators of a thread.
//
// LibTorch's dispatcher lets a thread enable a "mode": a dispatch key above all others (autocast, autograd, backends) whose fallback kernel
// gets each operator with its arguments on a stack. Ours looks up the arguments' storages in a table of this thread, calls back, disables
// the mode and calls the operator. The engine runs backward with the state of the thread that called backward(), so its operators come the
// same way. For a device it uses a thread of that device, which has the mode but not the table: there a table of all threads is used, under
// a lock. The thread that called backward() waits meanwhile, so callbacks are never concurrent.
//
// RecordFunction callbacks would see the same arguments, but LibTorch swallows their exceptions, and a failed exchange must stop the
// operator. The key is the one of LibTorch's own tests of such modes; nothing else in LibTorch uses it.
//
// Cost: boxing the arguments and a hash look-up per tensor: 0.13 to 0.39 us more for a product of two tensors of 4 elements (0.94 us
// without; 5 rounds, each the best of 20 batches of 20000, one thread, 2 busy cores). Nested operators are not watched: they access the
// same memory as the outer one.

namespace {

constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Watched {
  UseWatch* watch = nullptr;
  int id = 0;
};

using Table = std::unordered_map<const void*, Watched>;  ///< By storage.

struct ThreadTable {
  Table watched;
  int num_watches = 0;
};

thread_local ThreadTable thread_table;

/// The tensors watched by all threads, for the engine's threads.
struct SharedTable {
  std::shared_mutex mutex;
  Table watched;
};

SharedTable& shared_table = *new SharedTable;  // Never destroyed: engine threads outlive static objects.

struct FoundIds {
  UseWatch* watch = nullptr;
  std::vector<int> ids, written;
};
using Found = std::vector<FoundIds>;

void add_once(std::vector<int>& ids, int id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

void look_up(const at::Tensor& tensor, bool is_written, const Table& watched, Found& found) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto place = watched.find(storage_of(tensor));
  if (place == watched.end()) return;
  const auto [watch, id] = place->second;
  auto entry = std::find_if(found.begin(), found.end(), [watch = watch](const auto& one) { return one.watch == watch; });
  if (entry == found.end()) entry = found.insert(found.end(), {watch, {}, {}});
  add_once(entry->ids, id);
  if (is_written) add_once(entry->written, id);
}

void look_up(const c10::IValue& value, bool is_written, const Table& watched, Found& found) {
  if (value.isTensor()) {
    look_up(value.toTensor(), is_written, watched, found);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) look_up(tensor, is_written, watched, found);
  } else if (value.isList()) {  // Lists of optional tensors.
    for (const c10::IValue& element : value.toListRef()) look_up(element, is_written, watched, found);
  }
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

Found look_up(at::ArrayRef<c10::IValue> arguments, const std::vector<c10::Argument>& declared) {
  Found found;
  std::shared_lock<std::shared_mutex> lock;  // For the shared table only.
  const bool is_engine_thread = thread_table.num_watches == 0;
  if (is_engine_thread) lock = std::shared_lock(shared_table.mutex);
  const Table& watched = is_engine_thread ? shared_table.watched : thread_table.watched;
  for (size_t i = 0; i < arguments.size(); ++i) look_up(arguments[i], is_written(declared[i]), watched, found);
  return found;
}

void before_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& declared = op.schema().arguments();
  Found found = look_up(torch::jit::last(*stack, declared.size()), declared);
  // set_() (used by torch::load()) gives its first argument other memory without writing to the old one, which must exist nevertheless.
  if (!found.empty() && op.operator_name().name == "aten::set_")
    for (FoundIds& one : found) one.written.clear();
  const c10::impl::ExcludeDispatchKeyGuard mode_off(kMode);
  for (const auto& [watch, ids, written] : found) watch->callback()(ids, written);
  op.callBoxed(stack);
}

/// Makes kKernel the fallback of a dispatch key, for the rest of the process; no effect on threads and tensors without the key.
template <auto kKernel>
void register_fallback(c10::DispatchKey key) {
  [[gnu::used]] static const torch::Library* const library = [key] {  // Used: so that leak checkers see the reference.
    auto* made = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<kKernel>());
    return made;
  }();
}

}  // namespace

UseWatch::UseWatch(Callback before_use) : before_use_(std::move(before_use)) {
  register_fallback<&before_operator>(kMode);
  if (thread_table.num_watches++ == 0) c10::impl::tls_set_dispatch_key_included(kMode, true);
}

UseWatch::~UseWatch() {
  {
    const std::lock_guard<std::shared_mutex> lock(shared_table.mutex);
    for (const void* storage : storages_) shared_table.watched.erase(storage);
  }
  for (const void* storage : storages_) thread_table.watched.erase(storage);
  if (--thread_table.num_watches == 0) c10::impl::tls_set_dispatch_key_included(kMode, false);
}

void UseWatch::add(const at::Tensor& tensor, int id) {
  const void* const storage = tensor.storage().unsafeGetStorageImpl();
  {
    const std::lock_guard<std::shared_mutex> lock(shared_table.mutex);
    if (!shared_table.watched.emplace(storage, Watched{this, id}).second)
      fail(ErrorCode::kBadInput, "the tensor's memory is watched already");
  }
  thread_table.watched.emplace(storage, Watched{this, id});
  storages_.push_back(storage);
}

UnwatchedScope::UnwatchedScope() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kMode)) {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kMode, true);
}
UnwatchedScope::~UnwatchedScope() {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kMode, false);
}

// Operators are dispatched by the keys of their arguments. A stand-in has one more key, above all others, whose fallback kernel throws,
// except in operators of zero_grad(). The key is the one of LibTorch's own tests; nothing else in LibTorch uses it. Version counters would
// not do: clip_grad_norm_() writes through data(), which has its own version.

namespace {

constexpr const char* kInstead =
    "ranks have parts of it there, which step() of Parallel brings together. To clip, call step({.clip_norm = 1}); the norm is what "
    "step({.clip_norm = INFINITY}) returns; to scale, multiply the loss; whatever else reads or changes gradients goes with layout dp, no "
    "optimizer in ParallelOptions and step(optimizer), after a backward() that is not in accumulate()";
constexpr c10::DispatchKey kStandIn = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Storages of stand-ins zeroed by zero_grad(/*set_to_none=*/false).
struct Zeroed {
  std::mutex mutex;
  std::unordered_set<const void*> storages;
  static Zeroed& all() {
    static Zeroed* const zeroed = new Zeroed;
    return *zeroed;
  }
};

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

}  // namespace

at::Tensor gradient_stand_in(const at::Tensor& parameter) {
  register_fallback<&on_operator>(kStandIn);
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(parameter.scalar_type()));
  c10::StorageImpl& storage = *nothing.storage().unsafeGetStorageImpl();
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kInstead);
  {
    const std::lock_guard lock(Zeroed::all().mutex);
    Zeroed::all().storages.erase(&storage);  // Of an earlier storage at this address.
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

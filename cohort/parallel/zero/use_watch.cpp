// Watching the operators of a thread.
//
// LibTorch sends every operator call through its dispatcher, which lets a thread switch on a "mode": a dispatch key above all others
// (autocast, autograd, backends) whose fallback kernel gets each operator with its arguments on a stack. Ours looks the arguments' storages
// up in a table of this thread, calls back, switches the mode off and calls the operator on. The engine runs backward with the state of the
// thread that called backward(), so operators of backward come the same way, with saved tensors and their views among their arguments.
// What lies on a device it runs in a thread of that device, which has the mode by then but not the table: there a table of all threads is
// used, under a lock. The thread that called backward() waits meanwhile, so callbacks still come one at a time.
//
// RecordFunction callbacks would see the same arguments, but LibTorch swallows what they throw, and a failed exchange must stop the
// operator. The key used is the one that LibTorch's own tests of such modes use; nothing else in LibTorch does.
//
// Cost: arguments are put on a stack, and one hash look-up a tensor: 0.13 to 0.39 us more for a product of two tensors of 4 elements (0.94
// us without; 5 rounds, each the best of 20 batches of 20000, one thread, 2 busy cores). Operators inside of operators are not watched:
// they see the same memory as the outer one.
#include "cohort/parallel/zero/use_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
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

ThreadTable& mine() {
  thread_local ThreadTable table;
  return table;
}

/// What all threads watch, for the engine's.
struct SharedTable {
  std::shared_mutex mutex;
  Table watched;
};

SharedTable& shared() {
  static SharedTable* const table = new SharedTable;  // Threads of the engine outlive static objects.
  return *table;
}

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
  const auto place = watched.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
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
  std::shared_lock<std::shared_mutex> lock;  // Not for a thread's own table.
  const bool is_engine_thread = mine().num_watches == 0;
  if (is_engine_thread) lock = std::shared_lock(shared().mutex);
  const Table& watched = is_engine_thread ? shared().watched : mine().watched;
  for (size_t i = 0; i < arguments.size(); ++i) look_up(arguments[i], is_written(declared[i]), watched, found);
  return found;
}

void before_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& declared = op.schema().arguments();
  Found found = look_up(torch::jit::last(*stack, declared.size()), declared);
  // set_() gives its first argument other memory (so works torch::load()) and writes nothing to the old one, which must be there all the
  // same.
  if (!found.empty() && op.operator_name().name == "aten::set_")
    for (FoundIds& one : found) one.written.clear();
  const c10::impl::ExcludeDispatchKeyGuard mode_off(kMode);
  for (const auto& [watch, ids, written] : found) watch->callback()(ids, written);
  op.callBoxed(stack);
}

/// For the life of the process; without effect on threads that do not switch the mode on.
void register_fallback() {
  [[gnu::used]] static const torch::Library* const library = [] {  // Used: so that leak checkers see who holds it.
    auto* made = new torch::Library(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
    return made;
  }();
}

}  // namespace

UseWatch::UseWatch(Callback before_use) : before_use_(std::move(before_use)) {
  register_fallback();
  if (mine().num_watches++ == 0) c10::impl::tls_set_dispatch_key_included(kMode, true);
}

UseWatch::~UseWatch() {
  {
    const std::lock_guard<std::shared_mutex> lock(shared().mutex);
    for (const void* storage : storages_) shared().watched.erase(storage);
  }
  for (const void* storage : storages_) mine().watched.erase(storage);
  if (--mine().num_watches == 0) c10::impl::tls_set_dispatch_key_included(kMode, false);
}

void UseWatch::add(const at::Tensor& tensor, int id) {
  const void* const storage = tensor.storage().unsafeGetStorageImpl();
  {
    const std::lock_guard<std::shared_mutex> lock(shared().mutex);
    if (!shared().watched.emplace(storage, Watched{this, id}).second) fail(ErrorCode::kBadInput, "the tensor's memory is watched already");
  }
  mine().watched.emplace(storage, Watched{this, id});
  storages_.push_back(storage);
}

UnwatchedScope::UnwatchedScope() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kMode)) {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kMode, true);
}
UnwatchedScope::~UnwatchedScope() {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kMode, false);
}

}  // namespace cohort

#include "cohort/parallel/watch/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

using torch::autograd::Engine;

namespace {

/// What the innermost engine call of this thread does with gradients: autograd::grad() may run inside backward() and vice versa.
struct Purpose {
  enum class Kind { kNone, kAccumulates, kReturns };
  inline static thread_local Kind here = Kind::kNone;
  const Kind before = here;
  explicit Purpose(bool accumulates) { here = accumulates ? Kind::kAccumulates : Kind::kReturns; }
  Purpose(const Purpose&) = delete;
  ~Purpose() { here = before; }
};

}  // namespace

struct BackwardWatch::Record {
  explicit Record(Calls calls) : calls(std::move(calls)) {}
  const Calls calls;
  std::thread::id owner = std::this_thread::get_id();  ///< The thread that entered last, or created it.
  std::atomic<bool> in_backward{false}, failed{false}, creates_graph{false}, ended{false};
};

/// One outermost backward().
struct BackwardWatch::Backward {
  bool creates_graph = false;
  std::mutex mutex;
  std::vector<std::shared_ptr<Record>> entered;

  ~Backward() {
    for (const auto& record : entered) record->in_backward = false;
  }
};

/// Backward passes under way, in this thread and in all.
struct BackwardWatch::Running {
  inline static thread_local Backward* here = nullptr;
  inline static std::mutex mutex;
  inline static std::vector<std::shared_ptr<Record>>& watches = *new std::vector<std::shared_ptr<Record>>;  // Never destroyed.
  inline static std::vector<Backward*> everywhere;

  static std::vector<std::shared_ptr<Record>> watches_here() {
    std::vector<std::shared_ptr<Record>> found;
    const std::lock_guard lock(mutex);
    std::copy_if(watches.begin(), watches.end(), std::back_inserter(found),
                 [](const auto& record) { return record->owner == std::this_thread::get_id(); });
    return found;
  }

  Backward* const backward;
  explicit Running(Backward* backward) : backward(backward) {
    here = backward;
    const std::lock_guard lock(mutex);
    everywhere.push_back(backward);
  }
  ~Running() {
    here = nullptr;
    const std::lock_guard lock(mutex);
    std::erase(everywhere, backward);
  }
};

class BackwardWatch::WatchedEngine final : public Engine {
 public:
  static void install() {
    static WatchedEngine& engine = *new WatchedEngine(Engine::get_default_engine());  // Never destroyed.
    static std::once_flag once;
    std::call_once(once, [] { torch::autograd::set_default_engine_stub([]() -> Engine& { return engine; }); });
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    const Purpose purpose(accumulate_grad);
    const bool is_inside = Running::here || torch::autograd::get_current_node();
    if (is_inside || !accumulate_grad) return next_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    const std::vector<std::shared_ptr<Record>> watches = Running::watches_here();
    for (const auto& watch : watches)
      if (!watch->ended && watch->calls.at_begin) watch->calls.at_begin(roots);
    Backward backward;
    backward.creates_graph = create_graph;
    torch::autograd::variable_list gradients;
    try {
      const Running running(&backward);
      gradients = next_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (const c10::Error& error) {
      for (const auto& record : backward.entered) record->failed = true;
      for (const auto& watch : watches)
        if (!watch->ended && watch->calls.at_failure) watch->calls.at_failure(error.what_without_backtrace());
      throw;
    } catch (...) {
      for (const auto& record : backward.entered) record->failed = true;
      throw;
    }
    for (const auto& record : backward.entered) record->in_backward = false;
    for (size_t i = 0; i < backward.entered.size(); ++i) {
      Record& record = *backward.entered[i];
      if (record.ended || !record.calls.at_end) continue;
      try {
        record.calls.at_end();
      } catch (...) {
        while (++i < backward.entered.size()) backward.entered[i]->failed = true;
        throw;
      }
    }
    for (auto watch = watches.rbegin(); watch != watches.rend(); ++watch)
      if (!(*watch)->ended && (*watch)->calls.at_return) (*watch)->calls.at_return();
    return gradients;
  }

 private:
  explicit WatchedEngine(Engine& next) : next_(next) {}
  Engine& next_;
};

BackwardWatch::BackwardWatch(Calls calls) : record_(std::make_shared<Record>(std::move(calls))) {
  WatchedEngine::install();
  const std::lock_guard lock(Running::mutex);
  Running::watches.push_back(record_);
}

BackwardWatch::~BackwardWatch() {
  record_->ended = true;
  const std::lock_guard lock(Running::mutex);
  std::erase(Running::watches, record_);
}

bool BackwardWatch::enter() {
  if (record_->in_backward.exchange(true)) return false;
  Backward* backward = Running::here;
  const std::lock_guard lock(Running::mutex);
  if (backward) record_->owner = std::this_thread::get_id();
  // In a device's thread: the only backward() under way. One within torch::autograd::grad(), or one of several, is seen by the engine's own
  // callback at its end.
  if (!backward && Running::everywhere.size() == 1) backward = Running::everywhere.front();
  if (backward) {
    const std::lock_guard entering(backward->mutex);
    record_->creates_graph = backward->creates_graph;
    backward->entered.push_back(record_);
    return true;
  }
  record_->creates_graph = false;
  Engine::get_default_engine().queue_callback([record = record_] {
    record->in_backward = false;
    if (!record->ended && record->calls.at_end) record->calls.at_end();
  });
  return true;
}

bool BackwardWatch::is_accumulating() const {
  if (Purpose::here != Purpose::Kind::kNone) return Purpose::here == Purpose::Kind::kAccumulates;
  const std::lock_guard lock(Running::mutex);
  return record_->owner != std::this_thread::get_id() && !Running::everywhere.empty();  // A device's thread.
}

bool BackwardWatch::returns_gradients() { return Purpose::here == Purpose::Kind::kReturns; }
bool BackwardWatch::has_failed() const { return record_->failed; }
void BackwardWatch::clear() { record_->failed = false; }
bool BackwardWatch::creates_graph() const { return record_->creates_graph; }

namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void(const at::Tensor&)> callback) : callback_(std::move(callback)) {}
  void operator()(const torch::autograd::Variable& variable) override {
    at::NoGradGuard no_grad;
    callback_(variable);
  }

 private:
  std::function<void(const at::Tensor&)> callback_;
};

}  // namespace

void check_no_gradient_hook(const NamedTensor& parameter) {
  if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor))
    fail(ErrorCode::kBadInput, "parameter ", parameter.name,
         " already has a post-accumulate hook; a model can be in one Parallel (strategy, DataParallel) at a time");
}

void set_gradient_hook(const NamedTensor& parameter, std::function<void(const at::Tensor&)> callback) {
  check_no_gradient_hook(parameter);
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<GradientHook>(std::move(callback)));
}

void remove_gradient_hook(const NamedTensor& parameter) { torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr); }

}  // namespace cohort

#include "cohort/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "cohort/base/error.h"
#include "cohort/comm/gloo.h"
#include "cohort/comm/ordered_sum.h"
#include "cohort/comm/peers.h"
#include "cohort/comm/shm_exchange.h"
#include "cohort/comm/store.h"

namespace cohort {

struct Group::State {
  int rank = 0;
  int size = 1;
  std::string backend_name = "none";
  double timeout_seconds = 60;
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<ShmExchange> shm;  // One of these two carries the exchange.
  c10::intrusive_ptr<c10d::Backend> backend;
  Peers peers;

  /// Runs `exchange`; an error becomes one of ours that says what it was about and who is missing.
  template <typename Exchange>
  void guarded(const char* operation, const std::string& what, Exchange exchange) const {
    try {
      exchange();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      explain(operation, what, error.what());
    }
  }

  [[noreturn]] void explain(const char* operation, const std::string& what, std::string text) const {
    text = text.substr(0, text.find('\n'));
    for (const char* chatter : {". This may indicate", ". This is typically caused"}) text = text.substr(0, text.find(chatter));
    const std::string missing = peers.describe_missing(rank);
    fail(ErrorCode::kEnvironment, operation, " of ", what, " failed on rank ", rank, " of ", size, ": ",
         missing.empty() ? concat("a peer did not answer within ", timeout_seconds, " s or closed its connection") : missing, " [", text,
         "]");
  }
};

namespace {

/// An exchange that ends when `finish` has run.
template <typename Finish>
class PendingCall : public Pending {
 public:
  PendingCall(std::shared_ptr<Group::State> state, std::string what, Finish finish)
      : state_(std::move(state)), what_(std::move(what)), finish_(std::move(finish)) {}
  void wait() override { state_->guarded("the sum", what_, finish_); }

 private:
  std::shared_ptr<Group::State> state_;
  std::string what_;
  Finish finish_;
};

template <typename Finish>
std::unique_ptr<Pending> pending(std::shared_ptr<Group::State> state, std::string what, Finish finish) {
  return std::make_unique<PendingCall<Finish>>(std::move(state), std::move(what), std::move(finish));
}

class NothingPending : public Pending {
 public:
  void wait() override {}
};

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {}
Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

Group Group::create(const World& world, const GroupOptions& options) {
  if (world.size == 1) return Group();
  return create(make_store(world, options.timeout_seconds), world.rank, world.size, options);
}

Group Group::create(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options) {
  if (size == 1) return Group();
  const bool automatic = options.backend == "auto";
  if (!automatic && options.backend != "gloo" && options.backend != "shm")
    fail(ErrorCode::kBadInput, "backend '", options.backend, "' is not built; use auto, shm or gloo");
  auto state = std::make_shared<State>();
  state->rank = rank;
  state->size = size;
  state->store = store;
  state->timeout_seconds = options.timeout_seconds;
  state->guarded("the start", "the group", [&] {
    state->peers = Peers::exchange(*store, rank, size);
    const auto arena = options.backend != "gloo" && state->peers.on_one_machine() ? ShmArena::create(*store, rank, size) : nullptr;
    if (arena) {
      state->backend_name = "shm";
      state->shm = std::make_unique<ShmExchange>(arena, state->peers.pids(), options.timeout_seconds);
    } else if (automatic || options.backend == "gloo") {
      state->backend_name = "gloo";
      state->backend = make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, state->peers.address_to_bind(rank),
                                 options.timeout_seconds);
    } else {
      fail(ErrorCode::kBadInput, "backend shm: the ranks cannot share memory (several hosts, containers or users); use auto or gloo");
    }
  });
  return Group(std::move(state));
}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }
const std::string& Group::backend_name() const { return state_->backend_name; }

at::Tensor Group::allocate(int64_t num_elements, at::TensorOptions options) {
  return state_->shm ? state_->shm->allocate(num_elements, options) : at::zeros({num_elements}, options);
}

void Group::broadcast(at::Tensor tensor, int root, const std::string& what) {
  if (size() == 1 || tensor.numel() == 0) return;
  state_->guarded("the broadcast", what, [&] {
    if (state_->shm) return state_->shm->broadcast(tensor, root);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    state_->backend->broadcast(tensors, options)->wait();
  });
}

std::unique_ptr<Pending> Group::all_reduce_sum(at::Tensor flat, std::string what) {
  if (size() == 1 || flat.numel() == 0) return std::make_unique<NothingPending>();
  if (state_->shm && !state_->shm->is_shared(flat)) {
    state_->guarded("the sum", what, [&] { state_->shm->staged_sum(flat); });
    return std::make_unique<NothingPending>();
  }
  if (state_->shm) {
    uint64_t number = 0;
    state_->guarded("the sum", what, [&] { number = state_->shm->start_sum(flat); });
    return pending(state_, std::move(what), [shm = state_->shm.get(), number] { shm->finish_sum(number); });
  }
  if (size() == 2) {
    // With two ranks every order of summation is rank order: x0 + x1 == x1 + x0.
    std::vector<at::Tensor> tensors{flat};
    return pending(state_, std::move(what), [work = state_->backend->allreduce(tensors)] { work->wait(); });
  }
  return pending(state_, std::move(what), [sum = std::make_shared<OrderedSum>(*state_->backend, flat)] { sum->wait(); });
}

std::unique_ptr<Pending> Group::reduce_scatter_sum(at::Tensor output, at::Tensor input, std::string what) {
  at::Tensor sum = input.clone();
  all_reduce_sum(sum, std::move(what))->wait();
  output.copy_(sum.narrow(0, rank() * output.numel(), output.numel()));
  return std::make_unique<NothingPending>();
}

std::unique_ptr<Pending> Group::start_all_gather(at::Tensor output, at::Tensor input, std::string what) {
  all_gather(output.view({size(), -1}), input.clone(), what);
  return std::make_unique<NothingPending>();
}

std::shared_ptr<ShmArena> Group::arena() const { return state_->shm ? state_->shm->arena() : nullptr; }
const ShmWaiter* Group::waiter() const { return state_->shm ? &state_->shm->waiter() : nullptr; }

void Group::all_gather(at::Tensor output, at::Tensor input, const std::string& what) {
  if (input.numel() == 0) return;
  if (size() == 1) {
    output.view_as(input).copy_(input);
    return;
  }
  state_->guarded("the all-gather", what, [&] {
    if (state_->shm) return state_->shm->all_gather(output, input);
    at::Tensor flat_output = output.view({-1}), flat_input = input.view({-1});
    state_->backend->_allgather_base(flat_output, flat_input)->wait();
  });
}

void Group::barrier() {
  if (size() == 1) return;
  state_->guarded("the barrier", "all ranks", [&] {
    if (state_->shm) return state_->shm->barrier();
    state_->backend->barrier()->wait();
  });
}

std::vector<std::string> Group::all_gather_text(const std::string& text, const std::string& what) {
  if (size() == 1) return {text};
  at::Tensor length = at::empty({1}, at::kLong), lengths = at::empty({size(), 1}, at::kLong);
  length.data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  all_gather(lengths, length, what);
  const int64_t* sizes = lengths.data_ptr<int64_t>();
  const int64_t longest = *std::max_element(sizes, sizes + size());
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(size()));
  at::Tensor mine = at::zeros({longest}, at::kByte), all = at::empty({size(), longest}, at::kByte);
  std::memcpy(mine.data_ptr<uint8_t>(), text.data(), text.size());
  all_gather(all, mine, what);
  std::vector<std::string> texts;
  for (int rank = 0; rank < size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all.data_ptr<uint8_t>()) + rank * longest, static_cast<size_t>(sizes[rank]));
  return texts;
}

}  // namespace cohort

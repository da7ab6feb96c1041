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
#include "cohort/comm/store.h"

namespace cohort {

struct Group::State {
  int rank = 0;
  int size = 1;
  std::string backend_name = "none";
  double timeout_seconds = 60;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  Peers peers;

  /// Waits for `work`; an error of the backend becomes one of ours that says what it was about and who is missing.
  void finish(const c10::intrusive_ptr<c10d::Work>& work, const char* operation, const std::string& what) const {
    try {
      work->wait();
    } catch (const std::exception& error) {
      explain(operation, what, error.what());
    }
  }

  [[noreturn]] void explain(const char* operation, const std::string& what, std::string text) const {
    text = text.substr(0, text.find('\n'));
    text = text.substr(0, text.find(". This may indicate"));
    const std::string missing = peers.describe_missing(rank);
    fail(ErrorCode::kEnvironment, operation, " of ", what, " failed on rank ", rank, " of ", size, ": ",
         missing.empty() ? concat("a peer did not answer within ", timeout_seconds, " s or closed its connection") : missing, " [", text, "]");
  }
};

namespace {

class PendingWork : public PendingSum {
 public:
  PendingWork(std::shared_ptr<Group::State> state, c10::intrusive_ptr<c10d::Work> work, std::string what)
      : state_(std::move(state)), work_(std::move(work)), what_(std::move(what)) {}
  void wait() override { state_->finish(work_, "the sum", what_); }

 private:
  std::shared_ptr<Group::State> state_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class PendingOrderedSum : public PendingSum {
 public:
  PendingOrderedSum(std::shared_ptr<Group::State> state, at::Tensor flat, std::string what)
      : state_(std::move(state)), what_(std::move(what)), sum_(*state_->backend, std::move(flat)) {}
  void wait() override {
    try {
      sum_.wait();
    } catch (const std::exception& error) {
      state_->explain("the sum", what_, error.what());
    }
  }

 private:
  std::shared_ptr<Group::State> state_;
  std::string what_;
  OrderedSum sum_;
};

class NothingPending : public PendingSum {
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
  if (options.backend != "auto" && options.backend != "gloo")
    fail(ErrorCode::kBadInput, "backend '", options.backend, "' is not built; use auto or gloo");
  auto state = std::make_shared<State>();
  state->rank = rank;
  state->size = size;
  state->store = store;
  state->timeout_seconds = options.timeout_seconds;
  state->backend_name = "gloo";
  try {
    state->peers = Peers::exchange(*store, rank, size);
    state->backend = make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, state->peers.address_to_bind(rank), options.timeout_seconds);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    state->explain("the start", "the group", error.what());
  }
  return Group(std::move(state));
}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }
const std::string& Group::backend_name() const { return state_->backend_name; }
c10::intrusive_ptr<c10d::Backend> Group::backend() const { return state_->backend; }

void Group::broadcast(at::Tensor tensor, int root, const std::string& what) {
  if (size() == 1 || tensor.numel() == 0) return;
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  state_->finish(state_->backend->broadcast(tensors, options), "the broadcast", what);
}

std::unique_ptr<PendingSum> Group::all_reduce_sum(at::Tensor flat, std::string what) {
  if (size() == 1 || flat.numel() == 0) return std::make_unique<NothingPending>();
  if (size() == 2) {
    // With two ranks every order of summation is rank order: x0 + x1 == x1 + x0.
    std::vector<at::Tensor> tensors{std::move(flat)};
    return std::make_unique<PendingWork>(state_, state_->backend->allreduce(tensors), std::move(what));
  }
  return std::make_unique<PendingOrderedSum>(state_, std::move(flat), std::move(what));
}

void Group::all_gather(at::Tensor output, at::Tensor input, const std::string& what) {
  if (input.numel() == 0) return;
  if (size() == 1) {
    output.view_as(input).copy_(input);
    return;
  }
  at::Tensor flat_output = output.view({-1}), flat_input = input.view({-1});
  state_->finish(state_->backend->_allgather_base(flat_output, flat_input), "the all-gather", what);
}

void Group::barrier() {
  if (size() == 1) return;
  state_->finish(state_->backend->barrier(), "the barrier", "all ranks");
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

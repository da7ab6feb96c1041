#include "cohort/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "cohort/base/fail.h"
#include "cohort/comm/call_lane.h"
#include "cohort/comm/collective_backend.h"
#include "cohort/comm/device_exchange.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/group_transport.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/world/stop.h"
#include "cohort/world/uncaught.h"

namespace cohort {

struct Group::State {
  int rank = 0;
  int size = 1;
  std::string name = "world";
  std::string requested_backend = "auto", backend_name = "none";
  double timeout_seconds = 60;
  c10::intrusive_ptr<c10d::Store> store;
  Peers peers;
  std::vector<int> world_ranks;                   // Job ranks of this group.
  ShmTransport* shm = nullptr;                    // The backend's transport where all ranks share memory.
  c10::intrusive_ptr<CollectiveBackend> backend;  // For one rank: made on demand.
  std::shared_ptr<const DeviceLink> link;         // Set with `device`.
  std::shared_ptr<DeviceExchange> device;         // Null: host memory only.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::map<std::string, int> num_splits;  // By ranks and name.
  std::atomic<int> num_numbered{0};
  std::mutex mutex;  // Guards the three above.

  void make_device();
  /// For tensors on the exchanged device; null for host memory.
  DeviceExchange* device_of(const at::Tensor& tensor) const { return device && tensor.device() == link->device ? device.get() : nullptr; }
};

void Group::State::make_device() {
  device =
      std::make_shared<DeviceExchange>(link->make(c10::make_intrusive<c10d::PrefixStore>("device", store), rank, size, timeout_seconds),
                                       backend->lane(), DeviceExchange::Options{name, link->backend, timeout_seconds, peers});
}

namespace {

void check_memory(const char* operation, const at::Tensor& tensor, const std::string& what) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous())
    fail(ErrorCode::kBadInput, operation, " of ", what, ": a contiguous CPU tensor is wanted, not one on ", tensor.device().str(),
         tensor.is_contiguous() ? "" : " with gaps");
}

/// The call over one or two tensors; `name` must outlive it.
Call call_of(Op op, const at::Tensor& output, const at::Tensor& input, const std::string& name) {
  check_memory(name_of(op), input, name);
  if (!output.is_same(input)) check_memory(name_of(op), output, name);
  Call call;
  call.op = op;
  call.type = input.scalar_type();
  call.input = input.data_ptr();
  call.output = output.data_ptr();
  call.count = static_cast<size_t>(input.numel());
  call.name = name.c_str();
  return call;
}

/// An exchange under way.
class PendingCall : public Pending, public Task {
 public:
  PendingCall(std::shared_ptr<CallLane> lane, Op op, at::Tensor output, at::Tensor input, size_t count, std::string what)
      : lane_(std::move(lane)), what_(std::move(what)), output_(std::move(output)), input_(std::move(input)) {
    call_ = call_of(op, output_, input_, what_);
    call_.count = count;
  }
  ~PendingCall() override { lane_->end_with_memory(*this); }

  template <typename... Arguments>
  static std::unique_ptr<Pending> start(Arguments&&... arguments) {
    auto pending = std::make_unique<PendingCall>(std::forward<Arguments>(arguments)...);
    pending->lane_->add(*pending);
    return pending;
  }

  void wait() override {
    lane_->wait(*this);
    if (error()) std::rethrow_exception(error());
  }

 private:
  std::shared_ptr<CallLane> lane_;
  std::string what_;
  at::Tensor output_, input_;
};

class NothingPending : public Pending {
 public:
  void wait() override {}
};

class BlockingMessage : public Task {
 public:
  BlockingMessage(CallRecord::Kind kind, const at::Tensor& tensor, int peer, int tag, const std::string& what) {
    make_message(kind, tensor.data_ptr(), tensor.nbytes(), peer, tag);
    call_.name = what.c_str();
  }
  int source() const { return source_; }
};

/// Runs a message to its end. Returns the rank that sent it.
int run_message(CallLane& lane, CallRecord::Kind kind, const at::Tensor& tensor, int peer, int tag, const std::string& what) {
  check_memory(kind == CallRecord::Kind::kSend ? "send" : "receive", tensor, what);
  BlockingMessage message(kind, tensor, peer, tag, what);
  lane.add(message);
  lane.wait(message);
  if (message.error()) std::rethrow_exception(message.error());
  return message.source();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const char *first = static_cast<const char*>(a.data_ptr()), *second = static_cast<const char*>(b.data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {}
Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

Group Group::create(const World& world, const GroupOptions& options) {
  handle_uncaught_exceptions(world);
  if (world.size == 1) return Group();
  std::optional<ExitSoonAfterStop> ends;
  if (world.store_fd < 0) ends.emplace();
  return create(next_group_store(world, options.timeout_seconds), world.rank, world.size, options);
}

Group Group::create(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options) {
  const bool wants_device = options.backend == "nccl";
  if (wants_device && !options.device)
    fail(ErrorCode::kBadInput,
         name_settings("backend nccl moves tensors that lie on GPUs, and these do not: use --backend auto, or train with --device cuda"));
  if (size == 1) return Group();
  auto state = std::make_shared<State>();
  state->rank = rank;
  state->size = size;
  state->world_ranks = all_ranks(size);
  state->requested_backend = wants_device ? "auto" : options.backend;
  state->timeout_seconds = options.timeout_seconds;
  Group group = connect(std::move(store), std::move(state));
  if (options.device && (wants_device || options.backend == "auto")) group.connect_device(options);
  return group;
}

void Group::connect_device(const GroupOptions& options) {
  const std::string& name = options.device->backend;
  const std::string why_not = why_no_device_exchange(all_gather_text(device_offer(*options.device), "the ranks' devices"), name);
  if (!why_not.empty() && options.backend != "auto") fail(ErrorCode::kBadInput, "backend ", name, ": ", why_not);
  if (!why_not.empty()) return;
  state_->link = options.device;
  state_->make_device();
}

Group Group::connect(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<State> state) {
  try {
    state->store = store;
    if (state->peers.size() == 0) state->peers = Peers::exchange(*store, state->rank, state->size);
    GroupTransport made = make_group_transport(
        {state->requested_backend, store, state->rank, state->peers, state->world_ranks, state->timeout_seconds, state->name});
    state->shm = made.shm;
    state->backend_name = made.transport->name();
    state->backend = c10::make_intrusive<CollectiveBackend>(
        std::move(made.transport), CollectiveBackend::Options{state->name, state->timeout_seconds, store, state->peers});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string missing = state->peers.size() > 0 ? state->peers.describe_missing(state->rank) : "";
    fail(ErrorCode::kEnvironment, "the start of group ", state->name, " failed on rank ", state->rank, " of ", state->size, ": ",
         missing.empty() ? concat("a peer did not answer within ", state->timeout_seconds, " s or closed its connection") : missing, " [",
         without_advice(error.what()), "]");
  }
  return Group(std::move(state));
}

Group Group::split(const std::vector<int>& ranks, const std::string& what) const {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() || sorted.empty() || sorted.front() < 0 || sorted.back() >= size())
    fail(ErrorCode::kBadInput, "group ", what, ": ranks are named once each and lie in 0 to ", size() - 1);
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  if (mine == ranks.end())
    fail(ErrorCode::kBadInput, "group ", what, ": rank ", rank(), " is not one of its ranks and must not call split()");
  if (ranks.size() == 1) return Group();
  std::string prefix = concat("split/", what);
  for (const int each : ranks) prefix += concat("/", each);
  auto state = std::make_shared<State>();
  {
    // Numbered, so that the same ranks may split again: each has done so equally often.
    const std::lock_guard<std::mutex> lock(state_->mutex);
    prefix += concat("/number ", state_->num_splits[prefix]++);
  }
  state->rank = static_cast<int>(mine - ranks.begin());
  state->size = static_cast<int>(ranks.size());
  state->name = what;
  state->requested_backend = state_->requested_backend;
  state->timeout_seconds = state_->timeout_seconds;
  state->peers = state_->peers.subset(ranks);
  for (const int each : ranks) state->world_ranks.push_back(state_->world_ranks[static_cast<size_t>(each)]);
  state->link = state_->link;
  Group group = connect(c10::make_intrusive<c10d::PrefixStore>(prefix, state_->store), std::move(state));
  if (group.state_->link) group.state_->make_device();
  return group;
}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }
const std::string& Group::backend_name() const { return state_->backend_name; }
std::string Group::device_backend_name() const { return state_->device ? state_->device->name() : ""; }

bool Group::exchanges(const c10::Device& device) const {
  return device.is_cpu() || size() == 1 || (state_->device && state_->link->device == device);
}

at::Tensor Group::exchangeable(const at::Tensor& tensor) const { return exchanges(tensor.device()) ? tensor : tensor.cpu(); }

std::vector<int> Group::ranks_of_my_host() const { return size() == 1 ? std::vector<int>{0} : state_->peers.on_machine_of(rank()); }

int Group::num_hosts() const {
  int hosts = size() == 1 ? 1 : 0;
  for (int rank = 0; rank < state_->peers.size(); ++rank) hosts += state_->peers.on_machine_of(rank).front() == rank;
  return hosts;
}

at::Tensor Group::allocate(int64_t num_elements, at::TensorOptions options) {
  return size() == 1 ? at::zeros({num_elements}, options) : state_->backend->allocateTensor(num_elements, options);
}

void Group::all_reduce(at::Tensor tensor, Reduction reduction, const std::string& what) {
  if (size() == 1) return;
  if (DeviceExchange* const device = state_->device_of(tensor))
    return device->start(Op::kAllReduce, tensor, tensor, what, reduction)->wait();
  Call call = call_of(Op::kAllReduce, tensor, tensor, what);
  call.reduction = reduction;
  state_->backend->run(call);
}

void Group::broadcast(at::Tensor tensor, int root, const std::string& what) {
  if (root < 0 || root >= size()) fail(ErrorCode::kBadInput, "broadcast of ", what, ": there is no rank ", root, " in a group of ", size());
  if (size() == 1) return;
  if (DeviceExchange* const device = state_->device_of(tensor))
    return device->start(Op::kBroadcast, tensor, tensor, what, Reduction::kSum, root)->wait();
  Call call = call_of(Op::kBroadcast, tensor, tensor, what);
  call.root = root;
  state_->backend->run(call);
}

void Group::all_reduce_sum(at::Tensor flat, std::string what) { start_all_reduce_sum(std::move(flat), std::move(what))->wait(); }

std::unique_ptr<Pending> Group::start_all_reduce_sum(at::Tensor flat, std::string what) {
  if (size() == 1) return std::make_unique<NothingPending>();
  if (DeviceExchange* const device = state_->device_of(flat)) return device->start(Op::kAllReduce, flat, flat, std::move(what));
  return PendingCall::start(state_->backend->lane(), Op::kAllReduce, flat, flat, static_cast<size_t>(flat.numel()), std::move(what));
}

std::unique_ptr<Pending> Group::start_reduce_scatter_sum(at::Tensor output, at::Tensor input, std::string what) {
  if (input.numel() != output.numel() * size() || input.scalar_type() != output.scalar_type())
    fail(ErrorCode::kBadInput, "reduce-scatter of ", what, ": ", input.numel(), " elements of ", c10::toString(input.scalar_type()),
         " cannot become ", output.numel(), " of ", c10::toString(output.scalar_type()), " on each of ", size(), " ranks");
  if (size() == 1) {
    if (!output.is_same(input)) output.copy_(input.view_as(output));
    return std::make_unique<NothingPending>();
  }
  if (overlap(input, output)) input = input.clone();
  if (DeviceExchange* const device = state_->device_of(input)) return device->start(Op::kReduceScatter, output, input, std::move(what));
  const size_t count = static_cast<size_t>(output.numel());
  return PendingCall::start(state_->backend->lane(), Op::kReduceScatter, std::move(output), std::move(input), count, std::move(what));
}

namespace {

/// Checks an all-gather. A group of one rank does it at once; else `input` becomes a copy where it lies in `output` but not at this rank's
/// offset. Whether there is anything to exchange.
bool prepare_gather(const at::Tensor& output, at::Tensor& input, int rank, int size, const std::string& what) {
  if (output.numel() != input.numel() * size || input.scalar_type() != output.scalar_type())
    fail(ErrorCode::kBadInput, "all-gather of ", what, ": ", size, " times ", input.numel(), " elements of ",
         c10::toString(input.scalar_type()), " do not fit ", output.numel(), " of ", c10::toString(output.scalar_type()));
  if (size == 1) {
    if (output.data_ptr() != input.data_ptr()) output.view({-1}).copy_(input.view({-1}));
    return false;
  }
  const auto* const own = static_cast<const char*>(output.data_ptr()) + input.nbytes() * static_cast<size_t>(rank);
  if (overlap(output, input) && input.data_ptr() != own) input = input.clone();
  return true;
}

}  // namespace

std::unique_ptr<Pending> Group::start_all_gather(at::Tensor output, at::Tensor input, std::string what) {
  if (!prepare_gather(output, input, rank(), size(), what)) return std::make_unique<NothingPending>();
  if (DeviceExchange* const device = state_->device_of(input)) return device->start(Op::kAllGather, output, input, std::move(what));
  const size_t count = static_cast<size_t>(input.numel());
  return PendingCall::start(state_->backend->lane(), Op::kAllGather, std::move(output), std::move(input), count, std::move(what));
}

void Group::all_gather(at::Tensor output, at::Tensor input, const std::string& what) {
  if (!prepare_gather(output, input, rank(), size(), what)) return;
  if (DeviceExchange* const device = state_->device_of(input)) return device->start(Op::kAllGather, output, input, what)->wait();
  Call call = call_of(Op::kAllGather, output, input, what);
  state_->backend->run(call);
}

void Group::barrier() {
  if (size() == 1) return;
  Call call;
  state_->backend->run(call);
}

void Group::send(at::Tensor tensor, int peer, int tag, const std::string& what) {
  if (peer < 0 || peer >= size() || peer == rank())
    fail(ErrorCode::kBadInput, "send of ", what, ": rank ", peer, " is not another rank of this group of ", size());
  run_message(*state_->backend->lane(), CallRecord::Kind::kSend, tensor, peer, tag, what);
}

int Group::receive(at::Tensor tensor, int peer, int tag, const std::string& what) {
  if (peer < -1 || peer >= size() || peer == rank() || size() == 1)
    fail(ErrorCode::kBadInput, "receive of ", what, ": rank ", peer, " is not another rank of this group of ", size());
  const int source = run_message(*state_->backend->lane(), CallRecord::Kind::kReceive, tensor, peer, tag, what);
  return peer >= 0 ? peer : source;
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

c10::intrusive_ptr<c10d::Backend> Group::c10d_backend() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->backend) state_->backend = c10::make_intrusive<CollectiveBackend>(make_lone_transport(), CollectiveBackend::Options{});
  return state_->backend;
}

c10::intrusive_ptr<c10d::ProcessGroup> Group::process_group() const {
  const c10::intrusive_ptr<c10d::Backend> backend = c10d_backend();
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->process_group) {
    state_->process_group = c10::make_intrusive<c10d::ProcessGroup>(state_->store, rank(), size());
    state_->process_group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    if (state_->device)
      state_->process_group->setBackend(state_->link->device.type(), c10d::ProcessGroup::BackendType::CUSTOM, state_->device->backend());
    state_->process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    state_->process_group->setGroupName("cohort:" + state_->name);
  }
  return state_->process_group;
}

std::shared_ptr<ShmArena> GroupInternals::arena(const Group& group) { return group.state_->shm ? group.state_->shm->arena() : nullptr; }
const ShmWaiter* GroupInternals::waiter(const Group& group) { return group.state_->shm ? &group.state_->shm->waiter() : nullptr; }

void GroupInternals::run_by_hand(const Group& group, Op op, size_t count, at::ScalarType type, const std::string& what,
                                 const std::function<void()>& exchange) {
  if (group.size() == 1) return exchange();
  Call call;
  call.op = op;
  call.type = type;
  call.count = count;
  call.name = what.c_str();
  group.state_->backend->lane()->run_by_hand(call, exchange);
}

std::string GroupInternals::describe_missing(const Group& group) {
  return group.size() == 1 ? "" : group.state_->peers.describe_missing(group.rank());
}

void GroupInternals::set_note(const Group& group, const std::string& text) {
  if (group.state_->backend) group.state_->backend->set_note(text);
}

double GroupInternals::timeout_seconds(const Group& group) { return group.state_->timeout_seconds; }

int GroupInternals::next_number(const Group& group) { return group.state_->num_numbered++; }

}  // namespace cohort

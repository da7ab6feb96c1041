#include "cohort/comm/collective_backend.h"

#include <ATen/ops/zeros.h>

#include "cohort/base/fail.h"
#include "cohort/comm/net/gloo.h"

namespace cohort {
namespace {

using c10d::OpType;

/// Combines the transport's text with what the ranks found out together.
std::exception_ptr explain_failure(const HangReporter& reporter, int rank, int size, const Recorder& recorder, const std::string& call,
                                   const CallRecord* message, const std::exception_ptr& error) {
  ErrorCode code = ErrorCode::kEnvironment;
  std::string text = "unknown error";
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    code = known.code();
    text = known.what();
  } catch (const std::exception& other) {
    text = without_advice(other.what());
  } catch (...) {
  }
  if (message && code == ErrorCode::kFailed) {
    // The sender has completed its message and does not take part; nobody is waited for.
    const std::string calls = reporter.leave(recorder, call, text);
    return std::make_exception_ptr(Error(code, concat("the ", call, " failed on rank ", rank, " of ", size, ": ", text,
                                                      "; give both ends tensors of the same size and type; ", calls)));
  }
  const bool mismatch = code == ErrorCode::kFailed;
  const std::string verdict = reporter.explain(recorder, call, text, mismatch, message);
  // A mismatch has the same text on all ranks.
  if (mismatch) return std::make_exception_ptr(Error(code, text + "; " + verdict));
  return std::make_exception_ptr(Error(code, concat("the ", call, " failed on rank ", rank, " of ", size, ": ", verdict, " [", text, "]")));
}

std::shared_ptr<CallLane> make_lane(std::unique_ptr<Transport> transport, const CollectiveBackend::Options& options,
                                    std::shared_ptr<const FailureNote> note) {
  const int rank = transport->rank(), size = transport->size();
  const auto reporter = std::make_shared<HangReporter>(options.store, options.peers, rank, size, options.timeout_seconds, std::move(note));
  CallLane::Options lane;
  lane.timeout_seconds = options.timeout_seconds;
  lane.explain = [reporter, rank, size](const Recorder& recorder, const std::string& call, const CallRecord* message,
                                        const std::exception_ptr& error) {
    return explain_failure(*reporter, rank, size, recorder, call, message, error);
  };
  lane.has_ended = [peers = options.peers, rank](int peer) {
    for (int each = 0; each < peers.size(); ++each)
      if ((peer == each || peer < 0) && peers.state_of(each, rank) == "has ended") return true;
    return false;
  };
  return std::make_shared<CallLane>(std::move(transport), std::move(lane));
}

void set_call(CollectiveWork& work, Op op, int64_t count, int64_t root = 0, Reduction reduction = Reduction::kSum) {
  Call& call = work.call();
  call.op = op;
  call.count = static_cast<size_t>(count);
  call.root = static_cast<int>(root);
  call.reduction = reduction;
}

void check_pair(const char* operation, const at::Tensor& input, const at::Tensor& output) {
  check_tensor(operation, "input", input);
  check_tensor(operation, "output", output);
  check_same_type(operation, input, output);
}

}  // namespace

CollectiveBackend::CollectiveBackend(std::unique_ptr<Transport> transport, Options options)
    : c10d::Backend(transport->rank(), transport->size()),
      name_(concat("cohort-", transport->name())),
      timeout_seconds_(options.timeout_seconds),
      lane_(make_lane(std::move(transport), options, note_)) {
  lane_->exclusively([&](Transport& transport) { allocates_ = transport.allocate(1, at::kByte).defined(); });
}

CollectiveBackend::~CollectiveBackend() { lane_->close(); }

c10::intrusive_ptr<CollectiveWork> CollectiveBackend::make_work(OpType type, const char* title, Tensors result,
                                                                std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) timeout = wait_timeout_;
  // The transport enforces its own time-out; a wait with a shorter limit has to poll.
  if (timeout >= std::chrono::duration<double>(timeout_seconds_)) timeout = kNoTimeout;
  return c10::make_intrusive<CollectiveWork>(lane_, getRank(), type, title, std::move(result), timeout);
}

CollectiveBackend::WorkPointer CollectiveBackend::launch(c10::intrusive_ptr<CollectiveWork> work) {
  work->start();
  if (coalescing_) coalescing_->push_back(work);
  return work;
}

CollectiveBackend::WorkPointer CollectiveBackend::together(size_t count, const std::function<WorkPointer(size_t)>& start) const {
  std::vector<WorkPointer> works;
  for (size_t i = 0; i < count; ++i) works.push_back(start(i));
  return c10::make_intrusive<WorkBundle>(getRank(), std::move(works));
}

void CollectiveBackend::check_root(const char* operation, int64_t root) const {
  if (root < 0 || root >= getSize()) fail(ErrorCode::kBadInput, operation, ": there is no rank ", root, " in a group of ", getSize());
}

/// Requires one list with a tensor for each rank, all like `like`.
void CollectiveBackend::check_list(const char* operation, const char* what, const TensorLists& lists, const at::Tensor& like) const {
  if (lists.size() != 1) fail(ErrorCode::kBadInput, operation, ": one list of ", what, " tensors is wanted, not ", lists.size());
  if (lists[0].size() != static_cast<size_t>(getSize()))
    fail(ErrorCode::kBadInput, operation, ": ", lists[0].size(), " ", what, " tensors for ", getSize(), " ranks");
  for (const at::Tensor& tensor : lists[0]) {
    check_tensor(operation, what, tensor);
    check_same_type(operation, like, tensor);
    check_elements(operation, what, tensor, like.numel());
  }
}

CollectiveBackend::WorkPointer CollectiveBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only_tensor("all-reduce", "input", tensors);
  const Reduction reduction = reduction_of("all-reduce", options.reduceOp, tensor.scalar_type());
  auto work = make_work(OpType::ALLREDUCE, "cohort:all_reduce", tensors, options.timeout);
  in_place(*work, Op::kAllReduce, tensor, true);
  work->call().reduction = reduction;
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor("all-reduce", "input", tensor);
    reduction_of("all-reduce", options.reduceOp, tensor.scalar_type());
  }
  return together(tensors.size(), [&](size_t i) {
    Tensors one{tensors[i]};
    return allreduce(one, options);
  });
}

CollectiveBackend::WorkPointer CollectiveBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only_tensor("reduce", "input", tensors);
  check_root("reduce", options.rootRank);
  const Reduction reduction = reduction_of("reduce", options.reduceOp, tensor.scalar_type());
  auto work = make_work(OpType::REDUCE, "cohort:reduce", tensors, options.timeout);
  in_place(*work, Op::kReduce, tensor, options.rootRank == getRank());
  work->call().reduction = reduction;
  work->call().root = static_cast<int>(options.rootRank);
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                                 const c10d::ReduceScatterOptions& options) {
  at::Tensor& output = only_tensor("reduce-scatter", "output", outputs);
  check_list("reduce-scatter", "input", inputs, output);
  const Reduction reduction = reduction_of("reduce-scatter", options.reduceOp, output.scalar_type());
  auto work = make_work(OpType::REDUCE_SCATTER, "cohort:reduce_scatter", outputs, options.timeout);
  set_call(*work, Op::kReduceScatter, output.numel(), 0, reduction);
  reads(*work, joined(inputs[0]), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                       const c10d::ReduceScatterOptions& options) {
  check_pair("reduce-scatter", input, output);
  check_elements("reduce-scatter", "input", input, output.numel() * getSize());
  const Reduction reduction = reduction_of("reduce-scatter", options.reduceOp, output.scalar_type());
  auto work = make_work(OpType::_REDUCE_SCATTER_BASE, "cohort:reduce_scatter_tensor", {output}, options.timeout);
  set_call(*work, Op::kReduceScatter, output.numel(), 0, reduction);
  reads(*work, plain(input), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                                  const c10d::ReduceScatterOptions& options) {
  if (outputs.size() != inputs.size())
    fail(ErrorCode::kBadInput, "reduce-scatter: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  return together(inputs.size(), [&](size_t i) { return _reduce_scatter_base(outputs[i], inputs[i], options); });
}

CollectiveBackend::WorkPointer CollectiveBackend::barrier(const c10d::BarrierOptions& options) {
  return launch(make_work(OpType::BARRIER, "cohort:barrier", {}, options.timeout));
}

void CollectiveBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) { barrier(options)->wait(); }

CollectiveBackend::WorkPointer CollectiveBackend::message(CallRecord::Kind kind, Tensors& tensors, int peer, int tag) {
  const bool sends = kind == CallRecord::Kind::kSend;
  const char* const operation = sends ? "send" : "receive";
  at::Tensor& tensor = only_tensor(operation, sends ? "input" : "output", tensors);
  if (peer >= 0 || sends) check_root(operation, peer);
  if (peer == getRank()) fail(ErrorCode::kBadInput, operation, ": rank ", peer, " exchanges messages with other ranks only");
  auto work = make_work(sends      ? OpType::SEND
                        : peer < 0 ? OpType::RECVANYSOURCE
                                   : OpType::RECV,
                        sends ? "cohort:send" : "cohort:recv", tensors, kNoTimeout);
  at::Tensor memory = sends ? plain(tensor) : plain_room(tensor);
  if (!sends && !is_plain(tensor)) work->deliver([tensor = tensor.detach(), memory] { tensor.copy_(memory); });
  work->make_message(kind, memory.data_ptr(), memory.nbytes(), peer, tag);
  work->keep(std::move(memory));
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::send(Tensors& tensors, int peer, int tag) {
  return message(CallRecord::Kind::kSend, tensors, peer, tag);
}
CollectiveBackend::WorkPointer CollectiveBackend::recv(Tensors& tensors, int peer, int tag) {
  check_root("receive", peer);
  return message(CallRecord::Kind::kReceive, tensors, peer, tag);
}
CollectiveBackend::WorkPointer CollectiveBackend::recvAnysource(Tensors& tensors, int tag) {
  return message(CallRecord::Kind::kReceive, tensors, -1, tag);
}

void CollectiveBackend::startCoalescing() {
  if (coalescing_) fail(ErrorCode::kBadInput, "startCoalescing() twice without endCoalescing()");
  coalescing_.emplace();
}

CollectiveBackend::WorkPointer CollectiveBackend::endCoalescing() {
  if (!coalescing_) fail(ErrorCode::kBadInput, "endCoalescing() without startCoalescing()");
  auto works = std::move(*coalescing_);
  coalescing_.reset();
  return c10::make_intrusive<WorkBundle>(getRank(), std::move(works));
}

at::Tensor CollectiveBackend::allocateTensor(long size, at::TensorOptions options) {
  if (size < 0 || !options.device().is_cpu())
    fail(ErrorCode::kBadInput, "allocateTensor: ", size, " elements on ", options.device().str(), " are not what this group can allocate");
  at::Tensor tensor;
  lane_->exclusively([&](Transport& transport) { tensor = transport.allocate(size, options); });
  return tensor.defined() ? tensor : at::zeros({size}, options);
}

c10::intrusive_ptr<c10d::Backend::Options> CollectiveBackend::getBackendOptions() {
  return c10::make_intrusive<c10d::Backend::Options>(name_, std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds_ * 1e3)));
}

CollectiveBackend::WorkPointer CollectiveBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only_tensor("broadcast", "input", tensors);
  check_root("broadcast", options.rootRank);
  auto work = make_work(OpType::BROADCAST, "cohort:broadcast", tensors, options.timeout);
  in_place(*work, Op::kBroadcast, tensor, true);
  work->call().root = static_cast<int>(options.rootRank);
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  at::Tensor& input = only_tensor("all-gather", "input", inputs);
  check_list("all-gather", "output", outputs, input);
  auto work = make_work(OpType::ALLGATHER, "cohort:all_gather", outputs[0], options.timeout);
  set_call(*work, Op::kAllGather, input.numel());
  reads(*work, plain(input), writes(*work, outputs[0]), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  check_pair("all-gather", input, output);
  check_elements("all-gather", "output", output, input.numel() * getSize());
  auto work = make_work(OpType::_ALLGATHER_BASE, "cohort:all_gather_into_tensor", {output}, options.timeout);
  set_call(*work, Op::kAllGather, input.numel());
  reads(*work, plain(input), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  // c10d's layout: outputs[rank][i] is what that rank gave as inputs[i].
  if (outputs.size() != static_cast<size_t>(getSize()))
    fail(ErrorCode::kBadInput, "all-gather: ", outputs.size(), " output lists for ", getSize(), " ranks");
  for (const Tensors& list : outputs)
    if (list.size() != inputs.size()) fail(ErrorCode::kBadInput, "all-gather: ", list.size(), " outputs for ", inputs.size(), " inputs");
  std::vector<TensorLists> lists;
  for (size_t i = 0; i < inputs.size(); ++i) {
    lists.push_back({{}});
    for (const Tensors& list : outputs) lists[i][0].push_back(list[i]);
    check_tensor("all-gather", "input", inputs[i]);
    check_list("all-gather", "output", lists[i], inputs[i]);
  }
  return together(inputs.size(), [&](size_t i) {
    Tensors one{inputs[i]};
    return allgather(lists[i], one, options);
  });
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                                  const c10d::AllgatherOptions& options) {
  if (outputs.size() != inputs.size())
    fail(ErrorCode::kBadInput, "all-gather: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  return together(inputs.size(), [&](size_t i) { return _allgather_base(outputs[i], inputs[i], options); });
}

CollectiveBackend::WorkPointer CollectiveBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_pair("all-to-all", input, output);
  std::vector<size_t> send_counts = split_counts("input", input, input_splits, getSize());
  std::vector<size_t> receive_counts = split_counts("output", output, output_splits, getSize());
  const bool even = output_splits.empty() && input_splits.empty();
  if (even) check_elements("all-to-all", "output", output, input.numel());
  auto work = make_work(OpType::ALLTOALL_BASE, "cohort:all_to_all", {output}, options.timeout);
  Call& call = work->call();
  call.op = Op::kAllToAll;
  call.count = even ? send_counts[0] : 0;
  if (!even) {
    call.send_counts = std::move(send_counts);
    call.receive_counts = std::move(receive_counts);
  }
  reads(*work, plain(input), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const size_t size = static_cast<size_t>(getSize());
  if (inputs.size() != size || outputs.size() != size)
    fail(ErrorCode::kBadInput, "all-to-all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size, " ranks");
  auto work = make_work(OpType::ALLTOALL, "cohort:all_to_all", outputs, options.timeout);
  Call& call = work->call();
  call.op = Op::kAllToAll;
  for (size_t peer = 0; peer < size; ++peer) {
    check_tensor("all-to-all", "input", inputs[peer]);
    check_tensor("all-to-all", "output", outputs[peer]);
    check_same_type("all-to-all", inputs[0], inputs[peer]);
    check_same_type("all-to-all", inputs[0], outputs[peer]);
    call.send_counts.push_back(static_cast<size_t>(inputs[peer].numel()));
    call.receive_counts.push_back(static_cast<size_t>(outputs[peer].numel()));
  }
  reads(*work, joined(inputs), writes(*work, outputs), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  at::Tensor& input = only_tensor("gather", "input", inputs);
  check_root("gather", options.rootRank);
  const bool root = options.rootRank == getRank();
  if (root) check_list("gather", "output", outputs, input);
  auto work = make_work(OpType::GATHER, "cohort:gather", root ? outputs[0] : Tensors{}, options.timeout);
  set_call(*work, Op::kGather, input.numel(), options.rootRank);
  reads(*work, plain(input), root ? writes(*work, outputs[0]) : at::Tensor(), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  at::Tensor& output = only_tensor("scatter", "output", outputs);
  check_root("scatter", options.rootRank);
  const bool root = options.rootRank == getRank();
  if (root) check_list("scatter", "input", inputs, output);
  auto work = make_work(OpType::SCATTER, "cohort:scatter", outputs, options.timeout);
  set_call(*work, Op::kScatter, output.numel(), options.rootRank);
  const at::Tensor memory = writes(*work, output);
  if (root) reads(*work, joined(inputs[0]), memory, getRank());
  return launch(std::move(work));
}

}  // namespace cohort

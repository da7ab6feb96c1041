#include "cohort/comm/collective_work.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// One 1-d tensor over tensors that follow one another in one storage; undefined where they do not.
at::Tensor joined_view(const std::vector<at::Tensor>& tensors) {
  const char* next = nullptr;
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor) || !tensor.is_alias_of(tensors[0])) return {};
    const char* data = static_cast<const char*>(tensor.data_ptr());
    if (next && data != next) return {};
    next = data + tensor.nbytes();
    count += tensor.numel();
  }
  return tensors.empty() ? at::Tensor() : at::as_strided(tensors[0].detach(), {count}, {1}, tensors[0].storage_offset());
}

/// Copies consecutive ranges of `flat` into the tensors.
void split_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

void check_tensor(const char* operation, const char* what, const at::Tensor& tensor) {
  if (!tensor.defined()) fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is undefined");
  if (!tensor.device().is_cpu())
    fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is on ", tensor.device().str(),
         "; this group exchanges CPU memory: copy it there first");
  if (tensor.layout() != at::kStrided) fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is not dense; use to_dense()");
}

at::Tensor& only_tensor(const char* operation, const char* what, std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) fail(ErrorCode::kBadInput, operation, ": one ", what, " tensor is wanted, not ", tensors.size());
  check_tensor(operation, what, tensors[0]);
  return tensors[0];
}

void check_same_type(const char* operation, const at::Tensor& one, const at::Tensor& other) {
  if (one.scalar_type() != other.scalar_type())
    fail(ErrorCode::kBadInput, operation, ": input and output differ in type: ", c10::toString(one.scalar_type()), " and ",
         c10::toString(other.scalar_type()));
}

void check_elements(const char* operation, const char* what, const at::Tensor& tensor, int64_t expected) {
  if (tensor.numel() != expected)
    fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor has ", tensor.numel(), " elements; ", expected, " are wanted");
}

bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

at::Tensor plain(const at::Tensor& tensor) {
  at::Tensor detached = tensor.detach();
  return is_plain(detached) ? detached : detached.resolve_conj().resolve_neg().contiguous();
}

at::Tensor plain_room(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor.detach() : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  if (at::Tensor view = joined_view(tensors); view.defined()) return view;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(plain(tensor).view({-1}));
  return at::cat(flat);
}

Reduction reduction_of(const char* operation, const c10d::ReduceOp& op, at::ScalarType type) {
  const bool whole = c10::isIntegralType(type, /*includeBool=*/true), complex = c10::isComplexType(type);
  const auto refuse = [&](const char* name) {
    fail(ErrorCode::kBadInput, operation, ": ", name, " of ", c10::toString(type), " numbers is not defined");
  };
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::AVG:
      if (whole)
        fail(ErrorCode::kBadInput, operation, ": the average of ", c10::toString(type),
             " numbers is not an integer: sum them, or convert them first");
      return Reduction::kAverage;
    case c10d::ReduceOp::MIN:
      if (complex) refuse("the minimum");
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      if (complex) refuse("the maximum");
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      if (!whole) refuse("the bitwise and");
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      if (!whole) refuse("the bitwise or");
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      if (!whole) refuse("the bitwise xor");
      return Reduction::kBitXor;
    case c10d::ReduceOp::PREMUL_SUM:
      fail(ErrorCode::kBadInput, operation, ": PREMUL_SUM is for NCCL alone: multiply the tensor, then sum");
    default:
      fail(ErrorCode::kBadInput, operation, ": unknown reduction ", static_cast<int>(op.op_));
  }
}

std::vector<size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0), row = num_rows == 0 ? 0 : tensor.numel() / num_rows;
  if (splits.empty()) {
    if (num_rows % size != 0)
      fail(ErrorCode::kBadInput, "all-to-all: the ", what, " tensor has ", num_rows, " rows, which ", size,
           " ranks cannot divide equally: give the split sizes");
    return std::vector<size_t>(static_cast<size_t>(size), static_cast<size_t>(num_rows / size * row));
  }
  if (splits.size() != static_cast<size_t>(size))
    fail(ErrorCode::kBadInput, "all-to-all: ", splits.size(), " ", what, " split sizes for ", size, " ranks");
  std::vector<size_t> counts;
  int64_t total = 0;
  for (const int64_t split : splits) {
    if (split < 0 || split > num_rows - total)
      fail(ErrorCode::kBadInput, "all-to-all: the ", what, " split sizes do not add up to the ", num_rows, " rows of the tensor");
    total += split;
    counts.push_back(static_cast<size_t>(split * row));
  }
  if (total != num_rows) fail(ErrorCode::kBadInput, "all-to-all: the ", what, " split sizes add up to ", total, " of ", num_rows, " rows");
  return counts;
}

CollectiveWork::CollectiveWork(std::shared_ptr<CallLane> lane, int rank, c10d::OpType type, const char* title,
                               std::vector<at::Tensor> result, std::chrono::milliseconds timeout)
    : c10d::Work(rank, type, title), lane_(std::move(lane)), result_(std::move(result)), timeout_(timeout) {}

void CollectiveWork::start() {
  self_ = c10::intrusive_ptr<CollectiveWork>::reclaim_copy(this);
  lane_->add(*this);
}

void CollectiveWork::end() noexcept {
  const c10::intrusive_ptr<CollectiveWork> self = std::move(self_);
  if (!error_ && deliver_) {
    try {
      const c10::AutoGradMode no_gradients(false);
      deliver_();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  deliver_ = nullptr;
  kept_.clear();
  finish(error_);
  ended_.store(true, std::memory_order_release);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ && !future_marked_) future = future_;
    future_marked_ = true;
  }
  if (future) mark(future);
}

void CollectiveWork::mark(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (error_) future->setErrorIfNeeded(error_);
  else future->markCompleted(c10::IValue(result_));
}

bool CollectiveWork::isCompleted() { return lane_->poll(*this); }

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) timeout = timeout_;
  CallLane::Deadline deadline;
  if (timeout > kNoTimeout) deadline = std::chrono::steady_clock::now() + timeout;
  lane_->wait(*this, deadline);
  if (error_) std::rethrow_exception(error_);
  return true;
}

void CollectiveWork::abort() {
  fail(ErrorCode::kBadInput, "a call under way cannot be taken back: the other ranks count on it. End the group instead");
}

int CollectiveWork::sourceRank() const {
  if (!has_ended() || source_ < 0) fail(ErrorCode::kBadInput, "sourceRank() is known of a received message, after wait()");
  return source_;
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  bool complete = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = make_future();
    complete = future_marked_;
  }
  if (complete) mark(future_);
  else lane_->want_thread();
  return future_;
}

bool WorkBundle::isCompleted() {
  bool all = true;
  for (const auto& work : works_) all = work->isCompleted() && all;
  return all;
}

bool WorkBundle::isSuccess() const { return exception() == nullptr; }

std::exception_ptr WorkBundle::exception() const {
  for (const auto& work : works_)
    if (work->exception()) return work->exception();
  return nullptr;
}

bool WorkBundle::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

std::vector<at::Tensor> WorkBundle::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_)
    for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBundle::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  const auto type = c10::ListType::create(c10::TensorType::get());
  const auto self = c10::intrusive_ptr<WorkBundle>::reclaim_copy(this);
  return c10::collectAll(futures)->then(
      [self](c10::ivalue::Future& all) {
        if (all.hasError()) std::rethrow_exception(all.exception_ptr());
        if (const std::exception_ptr error = self->exception()) std::rethrow_exception(error);
        return c10::IValue(self->result());
      },
      type);
}

void in_place(CollectiveWork& work, Op op, const at::Tensor& tensor, bool writes) {
  at::Tensor memory = plain(tensor);
  Call& call = work.call();
  call.op = op;
  call.type = tensor.scalar_type();
  call.count = static_cast<size_t>(tensor.numel());
  call.input = memory.data_ptr();
  call.output = writes ? memory.data_ptr() : nullptr;
  if (writes && !is_plain(tensor)) work.deliver([tensor = tensor.detach(), memory] { tensor.copy_(memory); });
  work.keep(std::move(memory));
}

at::Tensor writes(CollectiveWork& work, const at::Tensor& tensor) {
  at::Tensor memory = plain_room(tensor);
  work.call().type = tensor.scalar_type();
  work.call().output = memory.data_ptr();
  if (!is_plain(tensor)) work.deliver([tensor = tensor.detach(), memory] { tensor.copy_(memory); });
  work.keep(memory);
  return memory;
}

at::Tensor writes(CollectiveWork& work, const std::vector<at::Tensor>& tensors) {
  at::Tensor memory = joined_view(tensors);
  if (!memory.defined()) {
    int64_t count = 0;
    for (const at::Tensor& tensor : tensors) count += tensor.numel();
    memory = at::empty({count}, tensors[0].options().requires_grad(false));
    work.deliver([tensors, memory] { split_into(tensors, memory); });
  }
  work.call().type = memory.scalar_type();
  work.call().output = memory.data_ptr();
  work.keep(memory);
  return memory;
}

void reads(CollectiveWork& work, at::Tensor memory, const at::Tensor& output, int rank) {
  if (output.defined()) {
    const char *in = static_cast<const char*>(memory.data_ptr()), *out = static_cast<const char*>(output.data_ptr());
    const bool overlap = in < out + output.nbytes() && out < in + memory.nbytes();
    const bool own_place = work.call().op == Op::kAllGather && in == out + static_cast<size_t>(rank) * memory.nbytes();
    if (overlap && !own_place) memory = memory.clone();
  }
  work.call().type = memory.scalar_type();
  work.call().input = memory.data_ptr();
  work.keep(std::move(memory));
}

}  // namespace cohort

#include "cohort/comm/collective_work.h"

#include <c10/core/GradMode.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

CollectiveWork::CollectiveWork(std::shared_ptr<CallLane> lane, int rank, c10d::OpType type, const char* title,
                               std::vector<at::Tensor> result, std::chrono::milliseconds timeout)
    : c10d::Work(rank, type, title), lane_(std::move(lane)), result_(std::move(result)), timeout_(timeout) {}

void CollectiveWork::make_message(CallRecord::Kind kind, void* data, size_t bytes, int peer, int tag) {
  kind_ = kind;
  data_ = data;
  call_.root = peer;
  call_.count = bytes;
  call_.handle = static_cast<uint64_t>(tag);
}

std::shared_ptr<Message> CollectiveWork::post(Transport& transport) {
  const int tag = static_cast<int>(call_.handle);
  return kind_ == CallRecord::Kind::kSend ? transport.send(data_, call_.count, call_.root, tag)
                                          : transport.receive(data_, call_.count, call_.root, tag);
}

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

}  // namespace cohort

#pragma once
// c10d's handle of a call under way.

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/call_lane.h"

namespace cohort {

/// One call or message that was started through c10d. It lives until it has ended, whether or not the caller keeps it. Any thread.
class CollectiveWork : public c10d::Work, public Task {
 public:
  /// What to do with the results when the call has ended well: copies into the caller's tensors.
  using Deliver = std::function<void()>;

  /// `result` is what result() and the future give; `kept` lives as long as the call. `timeout` bounds wait(); 0: the transport's alone.
  CollectiveWork(std::shared_ptr<CallLane> lane, int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> result,
                 std::chrono::milliseconds timeout);

  /// Fills the call before start(), or makes it a message.
  Call& call() { return call_; }
  void make_message(CallRecord::Kind kind, void* data, size_t bytes, int peer, int tag);
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  void deliver(Deliver deliver) { deliver_ = std::move(deliver); }
  void start();

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return call_.sequence; }

 private:
  void end() noexcept override;
  std::shared_ptr<Message> post(Transport& transport) override;
  void mark(const c10::intrusive_ptr<c10::ivalue::Future>& future);

  std::shared_ptr<CallLane> lane_;
  std::vector<at::Tensor> result_, kept_;
  Deliver deliver_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<CollectiveWork> self_;  // While under way.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_marked_ = false;
  void* data_ = nullptr;  // Of a message.
};

/// Several calls as one: what endCoalescing() and the coalesced forms give.
class WorkBundle : public c10d::Work {
 public:
  WorkBundle(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace cohort

#pragma once
// A call started through c10d: checks of its tensors, the work that represents it, and the memory that it reads and writes.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/call_lane.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

// Tensors of any strides become the dense memory that a Call needs.

/// Error(kBadInput) unless `tensor` is a dense CPU tensor. `operation` and `what` ("output") appear in the message.
void check_tensor(const char* operation, const char* what, const at::Tensor& tensor);
/// The only tensor of a list.
at::Tensor& only_tensor(const char* operation, const char* what, std::vector<at::Tensor>& tensors);
void check_same_type(const char* operation, const at::Tensor& one, const at::Tensor& other);
/// Error(kBadInput) where `tensor` has another number of elements.
void check_elements(const char* operation, const char* what, const at::Tensor& tensor, int64_t expected);

/// Contiguous and not lazily conjugated or negated.
bool is_plain(const at::Tensor& tensor);
/// The tensor itself or a plain copy, detached.
at::Tensor plain(const at::Tensor& tensor);
/// The tensor itself where it is plain, else uninitialized memory of its size.
at::Tensor plain_room(const at::Tensor& tensor);

/// All elements one after the other: a view where the tensors follow one another in one storage, else a copy.
at::Tensor joined(const std::vector<at::Tensor>& tensors);

/// Error(kBadInput) for a reduction that the type does not support and for PREMUL_SUM.
Reduction reduction_of(const char* operation, const c10d::ReduceOp& op, at::ScalarType type);

/// Elements for each of `size` ranks from rows of dimension 0; no splits: equal counts.
std::vector<size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);

/// A call or message under way. Lives until it has ended, whether or not the caller keeps it. Any thread.
class CollectiveWork : public c10d::Work, public Task {
 public:
  /// Copies results into the caller's tensors after success.
  using Deliver = std::function<void()>;

  /// `result`: what result() and the future return. `timeout` bounds wait(); 0: the transport's only.
  CollectiveWork(std::shared_ptr<CallLane> lane, int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> result,
                 std::chrono::milliseconds timeout);

  /// Fills the call before start(), or makes it a message.
  Call& call() { return call_; }
  using Task::make_message;
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
  void mark(const c10::intrusive_ptr<c10::ivalue::Future>& future);

  std::shared_ptr<CallLane> lane_;
  std::vector<at::Tensor> result_, kept_;
  Deliver deliver_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<CollectiveWork> self_;  // While under way.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_marked_ = false;
};

/// Several calls as one work, as endCoalescing() and the coalesced operations return it.
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

/// A call whose result replaces `tensor`, or which only reads it (`writes` false).
void in_place(CollectiveWork& work, Op op, const at::Tensor& tensor, bool writes);

/// Sets the output of the call: one tensor, or several in order. Returns the dense memory that is written.
at::Tensor writes(CollectiveWork& work, const at::Tensor& tensor);
at::Tensor writes(CollectiveWork& work, const std::vector<at::Tensor>& tensors);

/// Sets the input of the call; copies `memory` where it overlaps `output`, unless it is the block of `rank` in an all-gather. The op must
/// be set before.
void reads(CollectiveWork& work, at::Tensor memory, const at::Tensor& output, int rank);

}  // namespace cohort

#pragma once
// A c10d backend over any transport, used by c10d::ProcessGroup, c10d::Reducer and Group.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/call_lane.h"
#include "cohort/comm/collective_work.h"
#include "cohort/comm/transport/hang_report.h"

namespace cohort {

/// Implements all calls of c10d::Backend for CPU tensors: dense, any type and strides (non-contiguous ones are copied in and out). Calls
/// run in the order in which they were made, the same on all ranks; messages run beside them. Every call returns a work whose future
/// completes although nobody waits. Tensors must not be changed, or read where they are written, before the work has ended.
///
/// Invalid arguments are Error(kBadInput) at once. A call that differs between ranks, a lost rank or a time-out ends the group: the work's
/// Error names the guilty rank and operation (hang_report.h), and later calls fail at once.
///
/// Thread-safe as far as c10d is: calls of several threads are serialized, and their order must be the same on all ranks. Works that have
/// not ended before the backend end with an error.
class CollectiveBackend : public c10d::Backend {
 public:
  struct Options {
    std::string group = "world";            ///< Name of the group in messages.
    double timeout_seconds = 60;            ///< The transport's, for messages and error texts.
    c10::intrusive_ptr<c10d::Store> store;  ///< Used by this group only, to exchange failure reports. May be null.
    Peers peers;                            ///< Named in failures; may be empty.
  };
  CollectiveBackend(std::unique_ptr<Transport> transport, Options options);
  ~CollectiveBackend() override;

  /// Runs a call to its end in this thread, without a work.
  void run(Call& call) { lane_->run(call); }
  const std::shared_ptr<CallLane>& lane() const { return lane_; }
  const Transport& transport() const { return lane_->transport(); }
  const Recorder& recorder() const { return lane_->recorder(); }
  /// Part of the failure report that other ranks read, until it is set again; "" for none.
  void set_note(const std::string& text) { note_->set(text); }

  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options = {}) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options = {}) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options = {}) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options = {}) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options = {}) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options = {}) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options = {}) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options = {}) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options = {}) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options = {}) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options = {}) override;
  /// Splits are rows of dimension 0; both empty: equal splits.
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options = {}) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options = {}) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options = {}) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options = {}) override;
  WorkPointer barrier(const c10d::BarrierOptions& options = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks = false) override;
  WorkPointer send(Tensors& tensors, int peer, int tag) override;
  WorkPointer recv(Tensors& tensors, int peer, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  /// Zeroed memory in which all-reduce is cheapest. Collective.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return allocates_ && device == -1; }
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  /// Bounds wait() of later works where it is shorter than the transport's time-out.
  void setTimeout(std::chrono::milliseconds timeout) override { wait_timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return lane_->num_calls(); }
  void shutdown() override { lane_->close(); }

 private:
  c10::intrusive_ptr<CollectiveWork> make_work(c10d::OpType type, const char* title, Tensors result, std::chrono::milliseconds timeout);
  WorkPointer launch(c10::intrusive_ptr<CollectiveWork> work);
  WorkPointer message(CallRecord::Kind kind, Tensors& tensors, int peer, int tag);
  /// Starts several calls as one work.
  WorkPointer together(size_t count, const std::function<WorkPointer(size_t)>& start) const;
  void check_root(const char* operation, int64_t root) const;
  void check_list(const char* operation, const char* what, const TensorLists& lists, const at::Tensor& like) const;

  const std::string name_;
  const double timeout_seconds_;
  std::shared_ptr<FailureNote> note_ = std::make_shared<FailureNote>();
  std::shared_ptr<CallLane> lane_;
  bool allocates_ = false;
  std::chrono::milliseconds wait_timeout_{0};
  std::optional<std::vector<WorkPointer>> coalescing_;
};

}  // namespace cohort

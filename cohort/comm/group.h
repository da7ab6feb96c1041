#pragma once
// Ranks that communicate. A Group is a handle: copies share one connection.

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/transport/reduction.h"
#include "cohort/world/world.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace cohort {

/// How tensors on this rank's device are exchanged: over a backend that moves them there (nccl.h makes one).
struct DeviceLink {
  std::string backend = "nccl";
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::string identity;  ///< Unique per device in the job.
  std::string why_not;   ///< Not empty: why this rank cannot use it.
  std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store>, int rank, int size, double timeout_seconds)> make;
};

struct GroupOptions {
  /// shm (ranks of one host), gloo, shm+gloo (inside + between hosts), or auto: the best that works here. nccl: auto, and `device` must be
  /// used; with auto it is used where all ranks can.
  std::string backend = "auto";
  double timeout_seconds = 60.0;                  ///< Limit of one exchange.
  std::shared_ptr<const DeviceLink> device = {};  ///< Null: only host memory is exchanged.
};

/// An exchange that is under way.
class COHORT_API Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the result is available; errors as for Group. The destructor waits too, or closes the group while an exception is in
  /// flight.
  virtual void wait() = 0;
};

/// All members call the same operations in the same order, from one thread at a time. Tensors are dense, contiguous CPU memory, or lie on
/// the device that the group exchanges (no messages then, and sums in that backend's order); they must live until the operation has ended.
/// Every operation ends within the time-out or throws: Error(kFailed), the same text on all ranks, where they make different calls;
/// Error(kEnvironment) where a peer is lost, stopped or late. Both name the operation, the tensor, the guilty rank and what each rank
/// called last (hang_report.h). After that every operation of the group fails. A group of one rank does nothing and leaves tensors
/// unchanged.
class COHORT_API Group {
 public:
  /// One rank, no exchange.
  Group();
  /// All ranks of the job. Collective: every rank calls it, as often and in the same order as the others.
  static Group create(const World& world, const GroupOptions& options = {});
  /// For tests and custom launchers: ranks on this host that meet over `store`.
  static Group create(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options = {});

  int rank() const;
  int size() const;
  /// Transport in use: none, shm, gloo, shm+gloo, ...
  const std::string& backend_name() const;
  /// Backend of tensors on this rank's device ("nccl"), or "".
  std::string device_backend_name() const;
  /// Whether the operations below take tensors on `device`.
  bool exchanges(const c10::Device& device) const;
  /// `tensor`, or a copy in host memory where its device is not exchanged.
  at::Tensor exchangeable(const at::Tensor& tensor) const;
  /// In rank order, including this one.
  std::vector<int> ranks_of_my_host() const;
  int num_hosts() const;

  /// A new group of these ranks, in this order, over the same kind of backend. Collective over the listed ranks, including this one; the
  /// others do not call it. `what` names the new group in messages. Exchanges of the two groups are independent; ranks that have exchanges
  /// of both under way must wait for them in the same order.
  Group split(const std::vector<int>& ranks, const std::string& what) const;

  /// Operations named start_ return at once, the others block. `what` names the tensor in error messages. In place.
  void all_reduce(at::Tensor tensor, Reduction reduction, const std::string& what);
  void broadcast(at::Tensor tensor, int root, const std::string& what);
  /// Replaces `flat` (1-d) by its sum over the ranks, element by element in rank order ((x0 + x1) + x2) + ...: bitwise equal on all ranks
  /// and in every run. Sums complete in the order in which they were started.
  void all_reduce_sum(at::Tensor flat, std::string what);
  std::unique_ptr<Pending> start_all_reduce_sum(at::Tensor flat, std::string what);
  /// Sums `input` ({size x n}, 1-d) over the ranks in rank order; `output` ({n}) gets this rank's slice of the sum.
  std::unique_ptr<Pending> start_reduce_scatter_sum(at::Tensor output, at::Tensor input, std::string what);
  /// Starts all_gather(); `input` may be this rank's block of `output`.
  std::unique_ptr<Pending> start_all_gather(at::Tensor output, at::Tensor input, std::string what);
  /// output is {size, ...input's shape}.
  void all_gather(at::Tensor output, at::Tensor input, const std::string& what);
  void barrier();
  /// Messages of one sender with one tag arrive in order. Blocking; large sends may wait for the receiver.
  void send(at::Tensor tensor, int peer, int tag, const std::string& what);
  /// peer -1: from any rank. Returns the sender.
  int receive(at::Tensor tensor, int peer, int tag, const std::string& what);
  /// Every rank's text, in rank order.
  std::vector<std::string> all_gather_text(const std::string& text, const std::string& what);

  /// `num_elements` zeros, 1-d, in memory in which all_reduce_sum is cheapest (shared with the other ranks of this host). Collective, in
  /// the same order on all ranks; given back when the tensor ends.
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options);
  /// This group for c10d's own code: what Reducer and functional collectives talk to. Both share this group's order of calls. A caller
  /// includes c10d's Backend.hpp or ProcessGroup.hpp itself.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const;

  struct State;

 private:
  friend struct GroupInternals;
  static Group connect(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<State> state);
  void connect_device(const GroupOptions& options);
  explicit Group(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace cohort

#pragma once
// Exchanges of tensors that lie on this rank's device, over a c10d backend that moves them there (NCCL; nccl.h makes it).
//
// The device's backend moves the data; the group's own backend in host memory, its control plane, watches it. Every exchange is two calls:
//   1. control plane: all ranks' signatures of the call (op, type, count, root, name) are gathered, asynchronously;
//   2. device: the call itself, started at once. The first one waits for 1, because a backend may connect in it, without a time-out.
// wait() ends both: first the signatures, so that a rank that is dead, late or makes another call is named within the time-out by the same
// code as everywhere, then the device, polled until the time-out, which names a peer that has died meanwhile. A failure aborts the device's
// backend and closes the control plane: every later exchange of the group fails.
//
// Cost beyond the device's: one all-gather of 64 bytes a rank and call in host memory, under way while the device works; the thread that
// waits polls. Where c10d's NCCL by itself would end the process from a thread of its own, this throws in the caller's.

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/comm/transport/peers.h"
#include "cohort/comm/transport/transport.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace cohort {

class CallLane;

/// A rank's device identity, or why its device cannot be used, for the ranks' common decision.
std::string device_offer(const DeviceLink& link);
/// "" where every rank has a device of its own, else the reason, the same on all ranks.
std::string why_no_device_exchange(const std::vector<std::string>& offers, const std::string& backend);

/// Same errors, call order and threading as Group.
class DeviceExchange : public std::enable_shared_from_this<DeviceExchange> {
 public:
  struct Options {
    std::string group = "world";   ///< Group name in messages.
    std::string backend = "nccl";  ///< Backend name in messages.
    double timeout_seconds = 60;
    Peers peers;  ///< Named in failures; may be empty.
  };
  /// `control` spans the same ranks.
  DeviceExchange(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<CallLane> control, Options options);
  ~DeviceExchange();
  DeviceExchange(const DeviceExchange&) = delete;

  /// `input` and `output` (the same tensor for all-reduce and broadcast) are contiguous and have the sizes that `op` wants.
  std::unique_ptr<Pending> start(Op op, at::Tensor output, at::Tensor input, std::string what, Reduction reduction = Reduction::kSum,
                                 int root = 0);

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  const std::string& name() const { return options_.backend; }

 private:
  friend class DeviceCall;
  c10::intrusive_ptr<c10d::Work> launch(const Call& call, at::Tensor output, at::Tensor input);
  void await(c10d::Work& work, const std::string& call);
  /// Ends the group and throws Error(kEnvironment) with `reason` and the first line of the backend's `text`.
  [[noreturn]] void fail_group(const std::string& call, const std::string& reason, const std::string& text);
  void end_group(const std::string& why);
  std::string ended_peers() const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<CallLane> control_;
  const Options options_;
  bool connected_ = false;
  std::string failure_;
  uint64_t num_calls_ = 0;
};

}  // namespace cohort

#pragma once
// Point-to-point transfer of tensors, in order and without the sender waiting for the receiver, as pipelines need it between stages. Shapes
// and types travel with the tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"

namespace cohort {

struct TensorChannelsOptions {
  /// Bytes of shared memory that one rank's unread packets may occupy within a host. Further packets wait in the sender's private memory
  /// until the receiver has read some, and are moved by any later call. A peer without unread packets gets one of any size, so ranks never
  /// wait for each other in a circle. Memory is kept and reused. Over a network there is no limit: packets that were not asked for lie in
  /// the receiver's memory.
  int64_t shared_bytes = int64_t{256} << 20;
};

/// All calls from one thread at a time. Errors as for Group: they name the missing rank and what was waited for, and every later call
/// fails. Cost: docs/algorithms/handover.md.
class COHORT_PROGRAM_API TensorChannels {
 public:
  /// Collective over `group`, which must not be used otherwise meanwhile.
  explicit TensorChannels(Group group, TensorChannelsOptions options = {});
  /// Packets that were not flushed may be lost. Over a network waits at most a second for the other ranks to close.
  ~TensorChannels();
  TensorChannels(const TensorChannels&) = delete;

  /// Sends tensors (dense, CPU, any type and strides; undefined ones arrive undefined, the others contiguous and detached) to `peer`, which
  /// may be this rank. Copied before it returns. `what` names the packet in messages. Error(kBadInput) for other tensors.
  void send(int peer, const std::vector<at::Tensor>& tensors, const std::string& what);
  /// The next packet from `peer`. The tensors may be written. They are this rank's own or lie in shared memory that lives until the last of
  /// them has ended, in any thread, also after this object and the group.
  std::vector<at::Tensor> receive(int peer, const std::string& what);
  /// Whether receive() would return without waiting. Makes progress.
  bool ready(int peer);
  /// Waits until everything sent has left this rank's private memory. Call before the step ends.
  void flush();

  int64_t sent_bytes() const;
  double waited_seconds() const;  ///< In receive() and flush().

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort

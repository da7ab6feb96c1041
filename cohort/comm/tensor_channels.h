#pragma once
// Tensors handed from rank to rank, in the order in which they were sent, without the sender waiting for the receiver: what a pipeline
// moves between its stages. Shapes and types travel with them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"

namespace cohort {

struct TensorChannelsOptions {
  /// Ranks of one host share memory for packets: bytes of it that one rank's unread packets may take; more waits in the sender's own
  /// memory until the receiver has taken some, and moves on in any later call. A peer that has nothing unread gets one packet of any size,
  /// so ranks never wait for each other in a circle. Memory once taken is kept and used again. Over a network there is no such limit: what
  /// was sent and is not asked for lies in the receiver's memory.
  int64_t shared_bytes = int64_t{256} << 20;
};

/// All calls from one thread at a time. Errors as Group's: a wait names the rank that is missing and what was waited for; after that every
/// call fails. Cost and ways: docs/algorithms/handover.md.
class COHORT_PROGRAM_API TensorChannels {
 public:
  /// Collective over `group`, which is used for nothing else meanwhile.
  explicit TensorChannels(Group group, TensorChannelsOptions options = {});
  /// What was not flushed may be lost. Over a network waits for the other ranks' end, at most a second.
  ~TensorChannels();
  TensorChannels(const TensorChannels&) = delete;

  /// A packet of tensors (dense, CPU, any type and strides; undefined ones arrive undefined, the others contiguous and without history) for
  /// rank `peer` of the group, which may be this one. Copied when this returns: the tensors may be changed afterwards. `what` names it in
  /// messages. Error(kBadInput) for a tensor of another kind.
  void send(int peer, const std::vector<at::Tensor>& tensors, const std::string& what);
  /// The next packet from `peer`. The tensors are this rank's own, or lie in shared memory that stays until the last of the packet's
  /// tensors has ended (in any thread, also after this object and the group); they may be written.
  std::vector<at::Tensor> receive(int peer, const std::string& what);
  /// Whether receive() would return without waiting. Makes progress.
  bool ready(int peer);
  /// Waits until everything that was sent has left this rank's own memory. Before the step ends.
  void flush();

  int64_t sent_bytes() const;     ///< So far.
  double waited_seconds() const;  ///< So far, in receive() and flush().

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort

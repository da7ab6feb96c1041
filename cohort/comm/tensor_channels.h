#pragma once
// Tensors handed from rank to rank, in the order in which they were sent, without the sender waiting for the receiver: what a pipeline
// moves between its stages. Shapes and types travel with them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"

namespace cohort {

struct TensorChannelsOptions {
  /// Ranks of this host share memory for packets: bytes of it that one rank's unread packets may take; more waits in the sender's own
  /// memory until the receiver has taken some.
  int64_t shared_bytes = int64_t{256} << 20;
};

/// All calls from one thread. Errors as Group's: a wait names the rank that is missing and what was waited for.
class TensorChannels {
 public:
  /// Collective over `group`, which is used for nothing else meanwhile.
  explicit TensorChannels(Group group, TensorChannelsOptions options = {});
  ~TensorChannels();
  TensorChannels(const TensorChannels&) = delete;

  /// A packet of tensors (dense, CPU; undefined ones arrive undefined) for rank `peer` of the group. Returns once it is copied or on its
  /// way; the tensors may be changed afterwards. `what` names it in messages.
  void send(int peer, const std::vector<at::Tensor>& tensors, const std::string& what);
  /// The next packet from `peer`. The tensors are this rank's own, or lie in shared memory that stays until they end; they may be written.
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

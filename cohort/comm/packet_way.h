#pragma once
// What carries packets between the ranks of a group: TensorChannels picks one.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "cohort/comm/group.h"

namespace cohort {

/// One thread at a time. `peer` is another rank of the group. Errors: Error, or std::runtime_error whose text names the rank that is
/// missing.
class PacketWay {
 public:
  virtual ~PacketWay() = default;
  /// Takes the tensors over, packed (packet.h) in `bytes`, and returns without waiting for the peer.
  virtual void send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) = 0;
  virtual std::vector<at::Tensor> receive(int peer) = 0;
  virtual bool ready(int peer) = 0;  ///< Makes progress without waiting.
  virtual void flush() = 0;
};

/// Collective over the group, whose ranks share an arena.
std::unique_ptr<PacketWay> make_shm_packets(Group group, int64_t unread_bytes);
/// Collective over the group, over messages of its backend.
std::unique_ptr<PacketWay> make_network_packets(const Group& group);

}  // namespace cohort

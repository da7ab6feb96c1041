#pragma once
// Several tensors packed into contiguous memory, the format of hand-overs in shared memory and over the network.
//
// Words of 8 bytes: the number of tensors; for each its type (kUndefined: none), dimensions, sizes and data offset from the begin of the
// packet. Then the data, row-major, each tensor's at a multiple of kPacketAlignment.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"

namespace cohort {

constexpr size_t kPacketAlignment = 64;

/// Bytes that pack() will write. Error(kBadInput) naming `what` for a tensor that is not dense CPU memory.
size_t packed_bytes(const std::vector<at::Tensor>& tensors, const std::string& what);
/// Copies each tensor once, whatever its strides. `packet` is aligned to 8 bytes and has packed_bytes().
void pack(const std::vector<at::Tensor>& tensors, std::byte* packet);
/// Tensors that alias the packet, aligned to kPacketAlignment; `owner` lives until the last of them has ended. Error(kFailed) for an
/// invalid packet.
std::vector<at::Tensor> unpack(std::byte* packet, size_t bytes, const std::shared_ptr<void>& owner);

/// Transport of packets. One thread at a time; `peer` is another rank of the group. Errors: Error, or std::runtime_error naming the missing
/// rank.
class PacketTransport {
 public:
  virtual ~PacketTransport() = default;
  /// Sends the tensors, packed in `bytes`, and returns without waiting for the peer.
  virtual void send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) = 0;
  virtual std::vector<at::Tensor> receive(int peer) = 0;
  virtual bool ready(int peer) = 0;  ///< Makes progress without waiting.
  virtual void flush() = 0;
};

/// Collective over the group, whose ranks share an arena.
std::unique_ptr<PacketTransport> make_shm_packets(Group group, int64_t unread_bytes);
/// Collective over the group, over messages of its backend.
std::unique_ptr<PacketTransport> make_network_packets(const Group& group);

}  // namespace cohort

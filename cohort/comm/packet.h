#pragma once
// Several tensors in one stretch of memory: how a packet lies in shared memory and on the wire, and what carries it.
//
// Words of 8 bytes: the number of tensors; for each its type (kUndefined: none), dimensions, sizes and where its data begins, counted from
// the packet's begin. Then the data, row by row, each tensor's at a multiple of kPacketAlignment.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"

namespace cohort {

constexpr size_t kPacketAlignment = 64;

/// What pack() will write. Error(kBadInput) that names `what` for a tensor that is not dense CPU memory.
size_t packed_bytes(const std::vector<at::Tensor>& tensors, const std::string& what);
/// Copies each tensor once, whatever its strides. `packet` is aligned to 8 bytes and holds packed_bytes().
void pack(const std::vector<at::Tensor>& tensors, std::byte* packet);
/// Tensors over the packet's own memory, aligned to kPacketAlignment; `owner` lives until the last of them has ended. Error(kFailed) for
/// bytes that are no packet.
std::vector<at::Tensor> unpack(std::byte* packet, size_t bytes, const std::shared_ptr<void>& owner);

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

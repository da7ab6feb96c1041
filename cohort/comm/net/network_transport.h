#pragma once
// Collective calls over a network that can do one thing: carry a message from one rank to another.
//
// Steps of finish(): 1. ranks exchange frames (calls.h): signatures are compared and small calls are done; 2. run(): the operation by
// messages straight between the ranks that need the bytes; sums in rank order (network_transport.h).
//
// Cost for p ranks and n bytes a piece, after the frames: all-gather, all-to-all, gather and scatter one round of at most p-1 messages that
// carry each byte once; broadcast ceil(log2 p) rounds up to kSmallBytes, above it 2 rounds and about 2n bytes to and from each rank.
//
// Why not the network's own collectives: Gloo's and MPI's add floats in orders of their own, know different types, and end the process
// (Gloo) or corrupt memory on a mismatch. One round of direct messages moves the same bytes as a ring, in fewer steps; it wants p in the
// tens, hosts as a rule (composite_transport.h), not thousands.
//
// Source: broadcast of large arrays as scatter + all-gather: van de Geijn 1994, "On global combine operations", section 4; here both parts
// are direct instead of trees and rings.

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/transport/calls.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

struct Outgoing {
  int peer;
  const void* data;
  size_t bytes;
};
struct Incoming {
  int peer;
  void* data;
  size_t bytes;
};

class NetworkTransport : public Transport {
 public:
  static constexpr size_t kSmallBytes = 32 * 1024;  ///< Up to here rounds cost more than bytes.

  void finish(Call& call) final;
  bool wants_own_thread() const final { return true; }
  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) final;
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) final;

  /// The operation alone, for a caller that knows that all ranks make this call.
  void run(const Call& call);
  /// Sends and receives all of these, in any order on the wire; messages between two ranks in the order given. Empty ones are left out, so
  /// both sides must know the sizes. std::runtime_error names the rank that failed.
  void exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming);
  /// output: size x bytes, in rank order.
  void all_gather(void* output, const void* input, size_t bytes);

  /// What errors call the ranks instead of "rank 3".
  void set_peer_names(std::vector<std::string> names) { peer_names_ = std::move(names); }
  std::string peer_name(int peer) const;

 protected:
  /// Collective and point-to-point messages must never meet, whatever their tags.
  enum class Lane { kCollective, kUser };

  /// `group` names the group in messages about calls that differ.
  NetworkTransport(int rank, int size, std::string group) : Transport(rank, size), group_(std::move(group)) {}

  /// Starts a message; bytes may be 0; peer is another rank, or -1 in post_receive() on the user's lane. A message of another size than the
  /// receiver expects must end in an error of either side, never in a crash.
  virtual std::shared_ptr<Message> post_send(const void* data, size_t bytes, int peer, int tag, Lane lane) = 0;
  virtual std::shared_ptr<Message> post_receive(void* data, size_t bytes, int peer, int tag, Lane lane) = 0;
  virtual int max_tag() const = 0;

 private:
  void check_peer(int peer, int tag, bool any_allowed) const;
  void all_gather(const Call& call);
  void broadcast(const Call& call);
  void broadcast_by_tree(std::byte* data, size_t bytes, int root);
  void broadcast_by_slices(std::byte* data, size_t bytes, int root);
  void all_to_all(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);

  std::string group_;
  std::vector<std::string> peer_names_;
};

}  // namespace cohort

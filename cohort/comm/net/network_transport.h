#pragma once
// Collective calls on top of point-to-point messages.
//
// Steps of finish(): 1. ranks exchange frames (calls.h): signatures are compared and small calls complete; 2. run(): direct messages
// between the ranks that need the bytes; sums in rank order (network_transport.cpp).
//
// Cost for p ranks and n bytes per block, after the frames: all-gather, all-to-all, gather and scatter one round of at most p-1 messages
// that carry each byte once; broadcast ceil(log2 p) rounds up to kSmallBytes, above it 2 rounds and about 2n bytes per rank.
//
// The network's own collectives are not used: Gloo's and MPI's add floats in an order of their own, support different types, and end the
// process (Gloo) or corrupt memory on a mismatch. One round of direct messages moves the bytes of a ring in fewer steps, for p in the tens
// (hosts as a rule, composite_transport.h).
//
// Source: broadcast of large arrays as scatter + all-gather: van de Geijn 1994, "On global combine operations", section 4; here both
// phases are direct instead of trees and rings.

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
  static constexpr size_t kSmallBytes = 32 * 1024;  ///< Below, rounds cost more than bytes.

  void finish(Call& call) final;
  bool wants_own_thread() const final { return true; }
  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) final;
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) final;

  /// Runs the operation without comparing signatures.
  void run(const Call& call);
  /// Sends and receives all of these, in any order; messages between two ranks in the order given. Empty ones are skipped, so both sides
  /// must know the sizes. std::runtime_error names the rank that failed.
  void exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming);
  /// output: size x bytes, in rank order.
  void all_gather(void* output, const void* input, size_t bytes);

  /// Names of the ranks in errors instead of "rank 3".
  void set_peer_names(std::vector<std::string> names) { peer_names_ = std::move(names); }
  std::string peer_name(int peer) const;

 protected:
  /// Keeps collective and point-to-point messages apart, whatever their tags.
  enum class Lane { kCollective, kUser };

  /// `group` names the group in messages about calls that differ.
  NetworkTransport(int rank, int size, std::string group) : Transport(rank, size), group_(std::move(group)) {}

  /// Starts a message; `bytes` may be 0; peer -1 only in post_receive() on the user's lane. A size other than the receiver expects must be
  /// an error of either side, never a crash.
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

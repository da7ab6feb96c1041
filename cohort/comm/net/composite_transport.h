#pragma once
// Shared memory inside each host, a network between the hosts' first ranks (leaders): every byte crosses the network once a host, not once
// a rank.
//
// Steps: a call's frames (calls.h) go to the leader, between the leaders and back: every rank sees the signatures of all, and small calls
// are complete. Then
//   all-reduce 1. reduce to the leader inside each host; 2. all-reduce between leaders; 3. broadcast inside. reduce the same to the root's
//   leader, then a copy to the root. reduce-scatter 1. reduce inside; 2. leaders exchange the blocks of each other's ranks and reduce them;
//   3. scatter inside. all-gather 1. gather inside; 2. leaders exchange their blocks; 3. broadcast inside. broadcast 1. inside the root's
//   host; 2. between leaders; 3. inside the other hosts. gather, scatter, all-to-all: what leaves a host goes through both leaders in one
//   message for each run of ranks. point-to-point inside a host through memory, else over a network of all ranks.
// After each network step the leader broadcasts the outcome in its host, so that every rank names a lost host at once.
//
// Cost over the network, H hosts of m ranks (p = H m), n bytes a rank, in and out of one host, against the flat algorithm:
//   all-reduce 2 (H-1)/H n against 2 m (p-m)/p n = m times as much; reduce-scatter and all-gather (of n in all) (H-1)/H n against the same
//   for all-gather and m times as much for reduce-scatter; broadcast about 2n against 2 m n; all-to-all, gather, scatter the same bytes in
//   (H-1) m or fewer messages against m (p-m). Inside: one reduce and one broadcast in memory, 2 frames' hand-overs.
//
// Order of sums: fixed. Calls of up to CallFrame::kPayloadBytes in rank order; longer ones first inside each host in rank order, then over
// the hosts in the order of their first ranks. So a layout gives the same bits in every run, but not those of a flat transport.
//
// Source: the two-level scheme of Karonis et al. 2000, "Exploiting hierarchy in parallel computer networks to optimize collective operation
// performance".

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/net/network_transport.h"
#include "cohort/comm/transport/peers.h"

namespace cohort {

class CompositeTransport final : public Transport {
 public:
  struct Parts {
    std::unique_ptr<Transport> inside;          ///< This host's ranks in rank order; null where a rank is alone. Its time-out should exceed
                                                ///< the network's, so that a leader can report what it waits for.
    std::unique_ptr<NetworkTransport> between;  ///< The leaders in order of hosts; null on other ranks.
    std::unique_ptr<NetworkTransport> all;      ///< All ranks, for point-to-point messages; null: between hosts they are refused.
  };
  /// `group` names the group in messages. Error(kBadInput) where the parts do not fit the map.
  CompositeTransport(int rank, HostMap hosts, Parts parts, std::string group = "the group");

  const char* name() const override { return name_.c_str(); }
  const HostMap& hosts() const { return hosts_; }
  void finish(Call& call) override;
  bool wants_own_thread() const override { return true; }
  /// Refused from any rank (-1), since the message may come over either transport.
  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) override;
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) override;
  void close_connections() override {
    if (parts_.between) parts_.between->close_connections();
    if (parts_.all) parts_.all->close_connections();
  }
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options) override { return parts_.inside->allocate(num_elements, options); }

 private:
  bool is_leader() const { return place_ == 0; }
  size_t num_inside() const { return hosts_.ranks_of(host_).size(); }
  std::byte* at(void* data, int rank, size_t bytes) const { return static_cast<std::byte*>(data) + static_cast<size_t>(rank) * bytes; }

  void run_inside(Call call);
  Call inside_call(Op op, size_t bytes, const void* input, void* output, int root_place = 0) const;
  void reduce_inside(const Call& call, size_t count, void* output);
  Reduction between_hosts(Reduction reduction) const;
  void swap_inside(const void* input, std::vector<size_t> send_bytes, void* output, std::vector<size_t> receive_bytes);
  void move_inside(int from_rank, int to_rank, void* data, size_t bytes);
  void on_leaders(const std::function<void()>& step);
  /// Between leaders: each sends its host's blocks of `bytes` per rank to the same offsets of the others' arrays.
  void swap_blocks(std::byte* all, size_t bytes);

  void all_gather(void* output, const void* input, size_t bytes);
  void all_reduce(const Call& call);
  void reduce(const Call& call);
  void reduce_scatter(const Call& call);
  void broadcast(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_to_all(const Call& call, const CountMatrix& counts);
  bool is_on_this_host(int peer) const;

  HostMap hosts_;
  int host_, place_;
  Parts parts_;
  std::string group_, name_;
  uint64_t inside_sequence_ = 0;
};

}  // namespace cohort

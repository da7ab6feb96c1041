#pragma once
// Hosts and process ids of the ranks, exchanged at the start, so that failures can name a missing rank.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace cohort {

class Peers {
 public:
  Peers() = default;
  /// Every rank publishes its record and reads the others'. Collective; throws what the store throws when a rank does not come.
  static Peers exchange(c10d::Store& store, int rank, int size);

  /// "rank 1 (pid 77) has ended" for each other dead or stopped rank on this host, or "". Waits up to half a second for an end to become
  /// visible.
  std::string describe_missing(int rank) const;
  /// "has ended", "is stopped", or "" when `peer` runs or cannot be seen by `rank` (another host, its own process).
  std::string state_of(int peer, int rank) const;
  /// "rank 1 (pid 77)".
  std::string name_of(int peer) const;
  /// The ranks on the machine of `rank`, including itself.
  std::vector<int> on_machine_of(int rank) const;
  /// These ranks, in this order.
  Peers subset(const std::vector<int>& ranks) const;
  /// Whether all ranks are processes or threads of one machine that see each other.
  bool on_one_machine() const;
  int size() const { return static_cast<int>(peers_.size()); }
  /// Process id of each rank.
  std::vector<int> pids() const;
  /// 127.0.0.1 when all ranks are on one host, else this host's address on the way to another host's.
  std::string address_to_bind(int rank) const;

 private:
  struct Peer {
    std::string machine;  ///< Boot id, network and process name spaces: equal only where process ids mean the same.
    std::string address;
    int pid = 0;
  };
  std::vector<Peer> peers_;
};

/// 0, 1, ..., size - 1.
std::vector<int> all_ranks(int size);

/// Hosts in the order of their first ranks; the first rank of a host is its leader. Any placement of ranks is allowed.
class HostMap {
 public:
  /// `host_of_rank`: equal numbers for ranks of one host.
  explicit HostMap(const std::vector<int>& host_of_rank);

  int num_ranks() const { return static_cast<int>(host_of_.size()); }
  int num_hosts() const { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int place_of(int rank) const { return place_of_[static_cast<size_t>(rank)]; }                      ///< Index of the rank on its host.
  const std::vector<int>& ranks_of(int host) const { return ranks_of_[static_cast<size_t>(host)]; }  ///< In rank order.
  int leader_of(int host) const { return ranks_of(host).front(); }
  bool even() const;  ///< Whether all hosts have the same number of ranks.

  /// Consecutive ranks of a host, whose data is contiguous in rank order.
  struct Run {
    int first, count;
  };
  std::vector<Run> runs_of(int host) const;

  /// "host 1 (ranks 2 and 3)".
  std::string name_of(int host) const;

 private:
  std::vector<int> host_of_, place_of_;
  std::vector<std::vector<int>> ranks_of_;
};

}  // namespace cohort

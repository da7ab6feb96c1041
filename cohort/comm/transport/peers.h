#pragma once
// Who the other ranks are: host and process id, exchanged at the start, so that a failure can name the rank that is gone; and which of them
// are on which host.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace cohort {

class Peers {
 public:
  Peers() = default;
  /// Every rank puts its own record and reads the others'. Collective; throws what the store throws when a rank does not come.
  static Peers exchange(c10d::Store& store, int rank, int size);

  /// "rank 1 (pid 77) has ended" for each other rank on this host that is dead or stopped, or "". Waits up to half a second for an end to
  /// show.
  std::string describe_missing(int rank) const;
  /// "has ended" or "is stopped"; "" when `peer` runs, or where rank `rank` cannot see (another host, its own process).
  std::string state_of(int peer, int rank) const;
  /// "rank 1 (pid 77)".
  std::string name_of(int peer) const;
  /// The ranks on the machine of `rank`, itself among them.
  std::vector<int> on_machine_of(int rank) const;
  /// These ranks, in this order.
  Peers subset(const std::vector<int>& ranks) const;
  /// Whether all ranks are processes (or threads) of one machine that see each other.
  bool on_one_machine() const;
  int size() const { return static_cast<int>(peers_.size()); }
  /// Process id of each rank.
  std::vector<int> pids() const;
  /// 127.0.0.1 when all ranks are on one host, else this host's address on the way to another host's.
  std::string address_to_bind(int rank) const;

 private:
  struct Peer {
    std::string machine;  ///< Boot id and network and process name spaces: equal only where a process id means the same process.
    std::string address;
    int pid = 0;
  };
  std::vector<Peer> peers_;
};

/// 0, 1, ..., size - 1.
std::vector<int> all_ranks(int size);

/// Hosts are numbered in the order of their first ranks; the first rank of a host is its leader. Ranks may be placed in any order and
/// number.
class HostMap {
 public:
  /// `host_of_rank`: equal numbers for ranks of one host, whatever the numbers.
  explicit HostMap(const std::vector<int>& host_of_rank);

  int num_ranks() const { return static_cast<int>(host_of_.size()); }
  int num_hosts() const { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int place_of(int rank) const { return place_of_[static_cast<size_t>(rank)]; }  ///< Number of the rank among those of its host.
  const std::vector<int>& ranks_of(int host) const { return ranks_of_[static_cast<size_t>(host)]; }  ///< In rank order.
  int leader_of(int host) const { return ranks_of(host).front(); }
  bool even() const;  ///< Whether all hosts have the same number of ranks.

  /// Neighbouring ranks of a host, so that what they hold in rank order is one block.
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

#pragma once
// Which ranks of a group are on which host.

#include <string>
#include <vector>

namespace cohort {

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

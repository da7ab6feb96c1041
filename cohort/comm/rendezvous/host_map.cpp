#include "cohort/comm/rendezvous/host_map.h"

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {

HostMap::HostMap(const std::vector<int>& host_of_rank) {
  std::map<int, int> number_of;
  for (const int given : host_of_rank) {
    const int host = number_of.try_emplace(given, num_hosts()).first->second;
    if (host == num_hosts()) ranks_of_.emplace_back();
    std::vector<int>& ranks = ranks_of_[static_cast<size_t>(host)];
    place_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(num_ranks());
    host_of_.push_back(host);
  }
}

bool HostMap::even() const {
  return std::all_of(ranks_of_.begin(), ranks_of_.end(), [this](const auto& ranks) { return ranks.size() == ranks_of_.front().size(); });
}

std::vector<HostMap::Run> HostMap::runs_of(int host) const {
  std::vector<Run> runs;
  for (const int rank : ranks_of(host)) {
    if (!runs.empty() && runs.back().first + runs.back().count == rank) {
      ++runs.back().count;
    } else {
      runs.push_back({rank, 1});
    }
  }
  return runs;
}

std::string HostMap::name_of(int host) const { return concat("host ", host, " (", describe_ranks(ranks_of(host)), ")"); }

}  // namespace cohort

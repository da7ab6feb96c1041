#include "cohort/comm/group_transport.h"

#include <signal.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "cohort/base/backend_names.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/net/composite_transport.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/net/mpi_transport.h"

namespace cohort {
namespace {

c10::intrusive_ptr<c10d::Store> part_of(const TransportRequest& request, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, request.store);
}

/// Hosts are identified by the first rank on each.
HostMap hosts_of(const Peers& peers) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < peers.size(); ++rank) host_of_rank.push_back(peers.on_machine_of(rank).front());
  return HostMap(host_of_rank);
}

std::unique_ptr<ShmTransport> make_shm(const TransportRequest& request, const Peers& peers, int rank, const std::string& prefix,
                                       double timeout_seconds) {
  auto arena = ShmArena::create(*part_of(request, prefix), rank, peers.size());
  if (!arena) return nullptr;
  return std::make_unique<ShmTransport>(std::move(arena), peers.pids(), timeout_seconds, ShmTuning{}, request.group);
}

/// Gloo writes to the socket of a rank that has died without asking for an error instead of SIGPIPE, which would end this process without a
/// message. A program's own handler stays.
void survive_broken_pipes() {
  struct sigaction current{};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

/// Connects these ranks of the group over Gloo or, where requested, MPI.
std::unique_ptr<NetworkTransport> make_network(const TransportRequest& request, const std::vector<int>& ranks, const std::string& prefix,
                                               const std::string& address) {
  const int rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), request.rank) - ranks.begin());
  if (request.backend == "mpi" || request.backend == "shm+mpi") {
    std::vector<int> world_ranks;
    for (const int each : ranks) world_ranks.push_back(request.world_ranks[static_cast<size_t>(each)]);
    return make_mpi_transport(world_ranks, rank, request.timeout_seconds, request.group);
  }
  survive_broken_pipes();
  return make_gloo_transport(part_of(request, prefix), rank, static_cast<int>(ranks.size()), address, request.timeout_seconds,
                             request.group);
}

std::unique_ptr<Transport> make_composite(const TransportRequest& request) {
  HostMap hosts = hosts_of(request.peers);
  const int host = hosts.host_of(request.rank);
  const std::vector<int>& mine = hosts.ranks_of(host);
  const std::string address = request.peers.address_to_bind(request.rank);
  CompositeTransport::Parts parts;
  if (mine.size() > 1) {
    const std::string prefix = concat("inside/", host);
    // Longer than the network's, so that a leader can tell its host which other host is missing.
    parts.inside = make_shm(request, request.peers.subset(mine), hosts.place_of(request.rank), prefix, request.timeout_seconds * 1.5 + 1);
    if (!parts.inside) parts.inside = make_network(request, mine, prefix + "/network", "127.0.0.1");
  }
  std::vector<int> leaders;
  for (int each = 0; each < hosts.num_hosts(); ++each) leaders.push_back(hosts.leader_of(each));
  if (leaders.size() > 1) {
    if (hosts.leader_of(host) == request.rank) parts.between = make_network(request, leaders, "between", address);
    parts.all = make_network(request, all_ranks(hosts.num_ranks()), "all", address);
  }
  return std::make_unique<CompositeTransport>(request.rank, std::move(hosts), std::move(parts), request.group);
}

}  // namespace

GroupTransport make_group_transport(const TransportRequest& request) {
  if (std::find(kBackendNames.begin(), kBackendNames.end(), request.backend) == kBackendNames.end())
    fail(ErrorCode::kBadInput, "backend '", request.backend, "' is not built; use ", join(kBackendNames, ", "));
  const bool automatic = request.backend == "auto", one_machine = request.peers.on_one_machine();
  GroupTransport result;
  if ((automatic || request.backend == "shm") && one_machine) {
    auto shm = make_shm(request, request.peers, request.rank, "shm", request.timeout_seconds);
    if (shm && request.group == "world") tune(*shm);
    result.shm = shm.get();
    result.transport = std::move(shm);
    if (result.transport) return result;
  }
  if (request.backend == "shm")
    fail(ErrorCode::kBadInput, "backend shm: the ranks cannot share memory (several hosts, containers or users); use auto or gloo");
  const bool lone_ranks = hosts_of(request.peers).num_hosts() == request.peers.size();
  if (request.backend == "shm+gloo" || request.backend == "shm+mpi" || (automatic && !one_machine && !lone_ranks)) {
    result.transport = make_composite(request);
    return result;
  }
  result.transport = make_network(request, all_ranks(request.peers.size()), "network", request.peers.address_to_bind(request.rank));
  return result;
}

std::unique_ptr<Transport> make_lone_transport() {
  return std::make_unique<CompositeTransport>(0, HostMap({0}), CompositeTransport::Parts{});
}

}  // namespace cohort

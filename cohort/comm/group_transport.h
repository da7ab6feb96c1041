#pragma once
// Selects the transport of a group.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/shm/shm_transport.h"
#include "cohort/comm/transport/peers.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

struct TransportRequest {
  std::string backend = "auto";           ///< auto, shm, gloo, mpi, shm+gloo, shm+mpi.
  c10::intrusive_ptr<c10d::Store> store;  ///< Used by this group only.
  int rank = 0;
  Peers peers;
  std::vector<int> world_ranks;  ///< This group's ranks in MPI_COMM_WORLD.
  double timeout_seconds = 60;
  std::string group = "world";  ///< Group name in messages.
};

struct GroupTransport {
  std::unique_ptr<Transport> transport;
  ShmTransport* shm = nullptr;  ///< The transport, where all ranks share memory.
};

/// auto: shared memory where all ranks have it; on several hosts Gloo between them and shared memory inside those with more than one rank.
/// Collective. With Gloo SIGPIPE is ignored from here on, unless the program handles it. Error(kBadInput) for a name that is not built or
/// cannot work here.
GroupTransport make_group_transport(const TransportRequest& request);
/// The transport of a group of one rank.
std::unique_ptr<Transport> make_lone_transport();

}  // namespace cohort

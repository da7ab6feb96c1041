#pragma once
// MPI as a network: messages of Open MPI or MPICH, loaded at run time (mpi_library.h). The operations are NetworkTransport's.
//
// MPI's own waits are endless. Here every wait is a loop of MPI_Test that first yields, then sleeps (at most kLongestSleep, so that a core
// is free for the work that is waited for), and ends with the time-out: the error names the rank. Messages over 1 GiB go in parts, since
// MPI counts in int. A message that is longer or shorter than its place is an error at the receiver.

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/net/network_transport.h"

namespace cohort {

/// Connects the ranks `world_ranks` of MPI_COMM_WORLD, in this order; this process is number `rank` of them. Collective over them.
/// Error(kEnvironment): no MPI (see MpiLibrary::instance()), or a rank does not come within the time-out, which also bounds every later
/// wait. `group` names the group in messages.
std::unique_ptr<NetworkTransport> make_mpi_transport(const std::vector<int>& world_ranks, int rank, double timeout_seconds,
                                                     const std::string& group = "the group");

}  // namespace cohort

#pragma once
// Messages of Open MPI or MPICH, loaded at run time (mpi_library.h), as a network transport.
//
// MPI's waits have no time-out. Here every wait polls MPI_Test, first yielding, then sleeping up to kLongestSleep, and ends with a
// time-out that names the rank. Messages over 1 GiB are sent in chunks, since MPI counts in int. A message of unexpected length is an error
// at the receiver.

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
